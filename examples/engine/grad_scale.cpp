// What each GradScale makes of losses that are sums over tokens, where ranks have different numbers of tokens. Three
// microbatches a step; gradients travel in bf16. Norm times divisor is about the same for all: that of the whole sum.
//   bin/fsdp launch --nproc 2 -- build/release/examples/grad_scale
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

constexpr int kMicrobatches = 3;
int64_t num_tokens(int rank) { return int64_t{8} * (rank + 1); }  // in each microbatch

void train(const fsdp::World& world, const char* name, const fsdp::GradScale& scale, double divisor) {
  fsdp::ShardOptions options;
  options.precision.reduce = torch::kBFloat16;
  torch::manual_seed(1);
  const auto model = std::make_shared<Model>();
  for (auto& layer : *model->layers) fsdp::fully_shard(*layer, fsdp::Mesh::shard(world), options);
  fsdp::Unit root = fsdp::fully_shard(*model, fsdp::Mesh::shard(world), options);
  fsdp::AdamW optimizer(fsdp::parameters(*model), {.lr = 1e-3});
  for (int step = 1; step <= 3; ++step) {
    root.set_gradient_scale(scale);  // before the backwards of each step: with per_token() the counts may differ
    for (int i = 0; i < kMicrobatches; ++i) {
      const fsdp::Microbatch scope(root, /*is_last=*/i + 1 == kMicrobatches);
      torch::manual_seed(1000 * step + 10 * i + world.rank);
      const torch::Tensor x = torch::randn({num_tokens(world.rank), 32});
      (model->forward(x) - x.sin().sum(1, /*keepdim=*/true)).square().sum().backward();
    }
    const double norm = fsdp::clip_grad_norm_(*model, 1e9).item<double>();
    if (world.rank == 0) std::printf("%-9s gnorm %10.4f x %3.0f = %10.3f\n", name, norm, divisor, norm * divisor);
    optimizer.step();
    fsdp::zero_grad(*model);
  }
}

int main() try {
  const fsdp::World world = fsdp::init({.transport = fsdp::TransportKind::kGloo});
  const int64_t mine = kMicrobatches * num_tokens(world.rank);
  const double all = fsdp::sum_over_ranks(world, torch::full({1}, mine, torch::kLong)).item<double>();
  train(world, "sum", fsdp::GradScale::sum(), 1);
  train(world, "mean", fsdp::GradScale::mean(), world.size);
  train(world, "per_token", fsdp::GradScale::per_token(mine), all);
  return 0;
} catch (const fsdp::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
