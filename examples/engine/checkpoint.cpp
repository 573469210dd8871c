// A run that may be stopped anywhere: it saves every 5 steps while training goes on, and the next start, with any
// number of ranks, goes on from the newest checkpoint that is whole. Each start trains for 20 steps more.
//   bin/fsdp launch --nproc 2 -- build/release/examples/checkpoint run       (a folder; run it twice, or kill it)
#include <fsdp/fsdp.h>
#include <torch/torch.h>

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

int main(int argc, char** argv) try {
  const fsdp::World world = fsdp::init({.transport = fsdp::TransportKind::kGloo});
  torch::manual_seed(1);
  const auto model = std::make_shared<Model>();
  for (auto& layer : *model->layers) fsdp::fully_shard(*layer, fsdp::Mesh::shard(world));
  fsdp::fully_shard(*model, fsdp::Mesh::shard(world));
  fsdp::AdamW optimizer(fsdp::parameters(*model), {.lr = 1e-3});

  const std::string folder = argc > 1 ? argv[1] : "checkpoints";
  const fsdp::checkpoint::State state{.model = *model, .optimizer = optimizer};
  const auto resumed = fsdp::checkpoint::resume(folder, state, [](const auto& damaged, const std::string& reason) {
    std::printf("passed over %s: %s\n", damaged.c_str(), reason.c_str());  // on rank 0
  });
  const auto first = static_cast<int>(resumed ? resumed->step : 0);
  if (world.rank == 0)
    std::printf("%d steps done before, by %d ranks\n", first, resumed ? int(resumed->world_size) : 0);

  fsdp::checkpoint::Saver saver(world, folder, {.keep_last = 2});
  for (int step = first + 1; step <= first + 20; ++step) {
    torch::manual_seed(1000 * step + world.rank);
    const torch::Tensor x = torch::randn({32, 32});
    const torch::Tensor loss = (model->forward(x) - x.sin().sum(1, /*keepdim=*/true)).square().mean();
    loss.backward();
    optimizer.step();
    fsdp::zero_grad(*model);
    if (step % 5 != 0) continue;
    if (saver.in_flight()) saver.finish();  // waits, if writing takes longer than 5 steps
    saver.start(step, state);               // copies the state; threads write it
    const double mean = fsdp::sum_over_ranks(world, loss.detach()).item<double>() / world.size;
    if (world.rank == 0) std::printf("step %d: loss %.6f\n", step, mean);
  }
  const fsdp::checkpoint::SaveReport report = saver.finish();
  if (world.rank == 0)
    std::printf("step %lld is saved: %lld bytes, training waited for %.1f ms\n", static_cast<long long>(report.step),
                static_cast<long long>(report.bytes), report.stalled_seconds * 1000);
  return 0;
} catch (const fsdp::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
