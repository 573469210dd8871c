// A timeline of two steps, one file for each rank (open trace-rank0.json in ui.perfetto.dev or chrome://tracing), and a
// table of what each unit computed, what travelled meanwhile, and what was waited for.
//   bin/fsdp launch --nproc 2 -- build/release/examples/profile
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

namespace nn = torch::nn;

struct Model : nn::Module {
  Model() {
    for (int i = 0; i < 6; ++i) layers->push_back(nn::Sequential(nn::Linear(96, 384), nn::GELU(), nn::Linear(384, 96)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : *layers) x = x + layer->as<nn::Sequential>()->forward(x);
    return head(x);
  }
  nn::ModuleList layers = register_module("layers", nn::ModuleList());
  nn::Linear head = register_module("head", nn::Linear(96, 1));
};

int main() try {
  const fsdp::World world = fsdp::init({.transport = fsdp::TransportKind::kGloo});
  const fsdp::Mesh mesh = fsdp::Mesh::shard(world);
  torch::manual_seed(1);
  const auto model = std::make_shared<Model>();
  for (auto& layer : *model->layers) fsdp::fully_shard(*layer, mesh);
  fsdp::fully_shard(*model, mesh);
  fsdp::AdamW optimizer(fsdp::parameters(*model), {.lr = 1e-3});
  int step = 0;
  const auto train_step = [&] {
    torch::manual_seed(1000 * ++step + world.rank);
    const torch::Tensor x = torch::randn({128, 96});
    (model->forward(x) - x.sin().sum(1, /*keepdim=*/true)).square().mean().backward();
    optimizer.step();
    fsdp::zero_grad(*model);
  };
  for (int i = 0; i < 3; ++i) train_step();  // the first ones learn the order of the units

  fsdp::profile::Session session(world.rank);
  for (int i = 0; i < 2; ++i) train_step();
  session.stop();
  session.write("trace-rank" + std::to_string(world.rank) + ".json");
  if (world.rank == 0) std::printf("%s", session.summary().c_str());
  return 0;
} catch (const fsdp::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
