// The three hybrid strategies on a mesh of 2 x 2 ranks: the same training, other bytes at rest and on the wire.
//   bin/fsdp launch --nproc 4 -- build/release/examples/hybrid
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

namespace nn = torch::nn;
using fsdp::Strategy;

struct Model : nn::Module {
  Model() {
    for (int i = 0; i < 4; ++i) layers->push_back(nn::Sequential(nn::Linear(64, 256), nn::GELU(), nn::Linear(256, 64)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : *layers) x = x + layer->as<nn::Sequential>()->forward(x);
    return head(x);
  }
  nn::ModuleList layers = register_module("layers", nn::ModuleList());
  nn::Linear head = register_module("head", nn::Linear(64, 1));
};

void train(const fsdp::Mesh& mesh, Strategy strategy) {
  const fsdp::World& world = mesh.world();
  fsdp::ShardOptions options;
  options.strategy = strategy;
  torch::manual_seed(1);
  const auto model = std::make_shared<Model>();
  for (auto& layer : *model->layers) fsdp::fully_shard(*layer, mesh, options);
  fsdp::Unit root = fsdp::fully_shard(*model, mesh, options);
  fsdp::AdamW optimizer(fsdp::parameters(*model), {.lr = 1e-3});
  torch::Tensor loss;
  for (int step = 1; step <= 5; ++step) {
    root.reset_counters();
    torch::manual_seed(1000 * step + world.rank);
    const torch::Tensor x = torch::randn({32, 64});
    loss = (model->forward(x) - x.sin().sum(1, /*keepdim=*/true)).square().mean();
    loss.backward();
    optimizer.step();
    fsdp::zero_grad(*model);
  }
  const double mean = fsdp::sum_over_ranks(world, loss.detach()).item<double>() / world.size;
  const fsdp::RestingBytes rest = root.resting_bytes();
  const fsdp::Counters step = root.counters();  // the last one
  if (world.rank != 0) return;
  const auto kib = [](int64_t bytes) { return static_cast<double>(bytes) / 1024; };
  std::printf("%-13s loss %.6f; at rest %.1f KiB and optimizer %.1f KiB; a step has %d gathers and receives %.1f KiB\n",
              std::string(fsdp::name(strategy)).c_str(), mean,
              kib(rest.main_weight + rest.model_weight + rest.main_grad), kib(optimizer.state_bytes()),
              static_cast<int>(step.gathers), kib(step.gather_bytes + step.reduce_bytes));
}

int main() try {
  const fsdp::Mesh mesh(fsdp::init({.transport = fsdp::TransportKind::kGloo}), {{"replicate", 2}, {"shard", 2}});
  for (const auto strategy : {Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim}) train(mesh, strategy);
  return 0;
} catch (const fsdp::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
