// How often each allocator takes memory for gathered weights and gradients from the system: rotary, fixed_pool and
// traced stop once a step has shown what is needed. All units of a world share one allocator.
//   bin/fsdp launch --nproc 2 -- build/release/examples/allocators rotary
//   (or direct, storage_resize, fixed_pool, traced)
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

namespace nn = torch::nn;

struct Model : nn::Module {
  Model() {
    for (int i = 0; i < 6; ++i) layers->push_back(nn::Sequential(nn::Linear(64, 256), nn::GELU(), nn::Linear(256, 64)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : *layers) x = x + layer->as<nn::Sequential>()->forward(x);
    return head(x);
  }
  nn::ModuleList layers = register_module("layers", nn::ModuleList());
  nn::Linear head = register_module("head", nn::Linear(64, 1));
};

fsdp::AllocatorOptions allocator_of(const std::string& name) {
  if (name == "direct") return fsdp::AllocatorOptions::direct();
  if (name == "storage_resize") return fsdp::AllocatorOptions::storage_resize();
  if (name == "rotary") return fsdp::AllocatorOptions::rotary();
  if (name == "fixed_pool") return fsdp::AllocatorOptions::fixed_pool(int64_t{8} << 20);
  if (name == "traced") return fsdp::AllocatorOptions::traced();
  throw fsdp::Error(fsdp::ErrorCode::kUsage, "[allocators] got '" + name + "', expected a name from the first lines.");
}

int main(int argc, char** argv) try {
  const fsdp::World world = fsdp::init({.transport = fsdp::TransportKind::kGloo});
  const fsdp::Mesh mesh = fsdp::Mesh::shard(world);
  const std::string name = argc > 1 ? argv[1] : "rotary";
  fsdp::ShardOptions options;
  options.allocator = allocator_of(name);
  torch::manual_seed(1);
  const auto model = std::make_shared<Model>();
  for (auto& layer : *model->layers) fsdp::fully_shard(*layer, mesh, options);
  const fsdp::Unit root = fsdp::fully_shard(*model, mesh, options);
  fsdp::AdamW optimizer(fsdp::parameters(*model), {.lr = 1e-3});
  for (int step = 1; step <= 13; ++step) {
    torch::manual_seed(1000 * step + world.rank);
    const torch::Tensor x = torch::randn({32, 64});
    (model->forward(x) - x.sin().sum(1, /*keepdim=*/true)).square().mean().backward();
    optimizer.step();
    fsdp::zero_grad(*model);
    const auto allocations = static_cast<long long>(root.counters().buffer_allocations);  // since the start
    if (world.rank == 0 && (step == 3 || step == 13))
      std::printf("%s: %lld allocations after step %d\n", name.c_str(), allocations, step);
  }
  return 0;
} catch (const fsdp::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
