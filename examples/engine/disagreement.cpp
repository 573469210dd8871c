// What happens when one rank reads a sharded weight that the others do not: no hang, no silent wrong number. After the
// deadline of 3 s the weights that were waited for are NaN, and an error names operator, parameter and ranks.
//   bin/fsdp launch --nproc 4 -- build/release/examples/disagreement      (ends with exit code 5)
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>

namespace nn = torch::nn;

struct Model : nn::Module {
  Model() {
    for (int i = 0; i < 3; ++i) layers->push_back(nn::Sequential(nn::Linear(32, 128), nn::GELU(), nn::Linear(128, 32)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : *layers) x = x + layer->as<nn::Sequential>()->forward(x);
    return head(x);
  }
  nn::ModuleList layers = register_module("layers", nn::ModuleList());
  nn::Linear head = register_module("head", nn::Linear(32, 1));
};

int main() try {
  fsdp::InitOptions init_options;
  init_options.deadline = std::chrono::seconds(3);
  init_options.transport = fsdp::TransportKind::kGloo;
  const fsdp::World world = fsdp::init(init_options);
  const fsdp::Mesh mesh = fsdp::Mesh::shard(world);
  torch::manual_seed(1);
  const auto model = std::make_shared<Model>();
  for (auto& layer : *model->layers) fsdp::fully_shard(*layer, mesh);
  fsdp::fully_shard(*model, mesh);
  fsdp::AdamW optimizer(fsdp::parameters(*model), {.lr = 1e-3});

  // The mistake: reading a sharded weight is a gather, in which all ranks must take part.
  if (world.rank == 1) std::printf("norm %f\n", model->head->weight.norm().item<double>());

  torch::manual_seed(1000 + world.rank);
  const torch::Tensor x = torch::randn({32, 32});
  (model->forward(x) - x.sin().sum(1, /*keepdim=*/true)).square().mean().backward();  // throws on every rank
  optimizer.step();
  fsdp::zero_grad(*model);
  return 0;
} catch (const fsdp::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
