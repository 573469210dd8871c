// A schedule changes the peak of gathered weights and the waits, never the loss. All units of a world share one.
//   bin/fsdp launch --nproc 2 -- build/release/examples/schedules static_order    (delayed_release, on_demand, fsdp1)
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

namespace nn = torch::nn;

struct Model : nn::Module {
  Model() {
    for (int i = 0; i < 8; ++i) layers->push_back(nn::Sequential(nn::Linear(96, 384), nn::GELU(), nn::Linear(384, 96)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : *layers) x = x + layer->as<nn::Sequential>()->forward(x);
    return head(x);
  }
  nn::ModuleList layers = register_module("layers", nn::ModuleList());
  nn::Linear head = register_module("head", nn::Linear(96, 1));
};

fsdp::schedule::Schedule schedule_of(const std::string& name) {
  using fsdp::schedule::Schedule;
  if (name == "static_order") return Schedule::static_order();
  if (name == "delayed_release") return Schedule::delayed_release();
  if (name == "on_demand") return Schedule::on_demand();
  if (name == "fsdp1") return Schedule::fsdp1(false, fsdp::schedule::BackwardPrefetch::kPre, true);
  throw fsdp::Error(fsdp::ErrorCode::kUsage, "[schedules] got '" + name + "', expected a name from the first lines.");
}

int main(int argc, char** argv) try {
  const fsdp::World world = fsdp::init({.transport = fsdp::TransportKind::kGloo});
  const fsdp::Mesh mesh = fsdp::Mesh::shard(world);
  fsdp::ShardOptions options;
  options.schedule = schedule_of(argc > 1 ? argv[1] : "static_order");
  torch::manual_seed(1);
  const auto model = std::make_shared<Model>();
  for (auto& layer : *model->layers) fsdp::fully_shard(*layer, mesh, options);
  fsdp::Unit root = fsdp::fully_shard(*model, mesh, options);
  fsdp::AdamW optimizer(fsdp::parameters(*model), {.lr = 1e-3});
  double loss = 0;
  for (int step = 1; step <= 12; ++step) {
    if (step == 3) root.reset_counters();
    torch::manual_seed(1000 * step + world.rank);
    const torch::Tensor x = torch::randn({128, 96});
    const torch::Tensor error = (model->forward(x) - x.sin().sum(1, /*keepdim=*/true)).square().mean();
    error.backward();
    optimizer.step();
    fsdp::zero_grad(*model);
    loss = fsdp::sum_over_ranks(world, error.detach()).item<double>() / world.size;
  }
  if (world.rank != 0) return 0;
  const auto kib = [](int64_t bytes) { return static_cast<double>(bytes) / 1024; };
  std::printf("%s: at most %.1f KiB gathered (largest unit %.1f), %.2f ms a step waited for gathers, loss %.6f\n",
              fsdp::schedule::describe(options.schedule).c_str(), kib(root.counters().peak_unsharded_bytes),
              kib(root.largest_unit_bytes()), root.counters().exposed_gather_ms / 10, loss);
  return 0;
} catch (const fsdp::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
