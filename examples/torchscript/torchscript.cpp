// Trains a TorchScript file, sharded, and writes what torch::jit::load() and torch.jit.load() read:
//   fsdp launch --nproc 2 -- ./torchscript [model.pt [trained.pt]]      (makes model.pt where there is none)
#include <fsdp/fsdp.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

namespace jit = torch::jit;

jit::Module make_layer(const std::string& class_name, int64_t in, int64_t out) {
  jit::Module layer(class_name);
  layer.register_parameter("weight", (torch::randn({out, in}) / std::sqrt(in)).requires_grad_(), false);
  layer.register_parameter("bias", torch::zeros({out}).requires_grad_(), false);
  layer.define("def forward(self, x):\n  return torch.linear(x, self.weight, self.bias)\n");
  return layer;
}

// What another program might have left here.
void make_file(const std::string& path) {
  torch::manual_seed(1);
  jit::Module model("Model");
  model.register_module("inlet", make_layer("Inlet", 8, 64));
  model.register_module("middle", make_layer("Middle", 64, 64));
  model.register_module("outlet", make_layer("Outlet", 64, 1));
  model.define(R"(
def forward(self, x):
  x = torch.tanh(self.inlet.forward(x))
  for i in range(2):
    x = x + torch.tanh(self.middle.forward(x))
  return self.outlet.forward(x)
)");
  model.save(path);
}

int main(int argc, char** argv) try {
  const std::string path = argc > 1 ? argv[1] : "model.pt";
  const std::string trained_path = argc > 2 ? argv[2] : "trained.pt";
  const fsdp::World world = fsdp::init();
  if (world.rank == 0 && !std::filesystem::exists(path)) make_file(path);
  fsdp::barrier(world, "the file is there");

  jit::Module model = jit::load(path);
  model.train();
  const fsdp::Unit root = fsdp::shard_where(model, fsdp::script_by_size(100), fsdp::Mesh::shard(world));
  if (world.rank == 0) std::printf("%s", root.describe().c_str());
  fsdp::AdamW optimizer(fsdp::parameters(model), {.lr = 3e-3});
  const auto loss_of = [](jit::Module& module, uint64_t seed) {
    torch::manual_seed(seed);
    const torch::Tensor x = torch::randn({64, 8});
    return (module.forward({x}).toTensor() - x.sin().sum(1, /*keepdim=*/true)).square().mean();
  };
  double first = 0;
  double last = 0;
  for (int step = 1; step <= 150; ++step) {
    const torch::Tensor loss = loss_of(model, 1000 * step + world.rank);
    loss.backward();
    optimizer.step();
    fsdp::zero_grad(model);
    last = fsdp::sum_over_ranks(world, loss.detach()).item<double>() / world.size;
    if (step == 1) first = last;
    if (world.rank == 0 && step % 50 == 0) std::printf("step %3d  loss %.4f\n", step, last);
  }

  fsdp::save(model, trained_path);
  const torch::NoGradGuard no_grad;
  const double sharded = loss_of(model, 7).item<double>();  // every rank takes part, on the same rows
  if (world.rank != 0) return 0;
  jit::Module plain = jit::load(trained_path);
  std::printf("%s: loss %.6f, sharded %.6f\n", trained_path.c_str(), loss_of(plain, 7).item<double>(), sharded);
  return last < 0.3 * first ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
