// Trains a plain torch::nn model, sharded over however many ranks it is started with:
//   fsdp launch --nproc 2 -- ./minimal      (or torchrun --no-python, srun, mpirun, or alone)
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

namespace nn = torch::nn;

struct ModelImpl : nn::Module {
  ModelImpl() {
    layers = register_module("layers", nn::ModuleList());
    for (int i = 0; i < 3; ++i) layers->push_back(nn::Sequential(nn::Linear(32, 128), nn::GELU(), nn::Linear(128, 32)));
    head = register_module("head", nn::Linear(32, 1));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : *layers) x = x + layer->as<nn::Sequential>()->forward(x);
    return head(x);
  }
  nn::ModuleList layers{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(Model);

int main() try {
  fsdp::World world = fsdp::init();
  fsdp::Mesh mesh = fsdp::Mesh::shard(world);
  torch::manual_seed(1);

  Model model;
  for (auto& layer : *model->layers) fsdp::fully_shard(*layer, mesh);
  fsdp::Unit root = fsdp::fully_shard(*model, mesh);
  if (world.rank == 0) std::printf("%s", root.describe().c_str());

  fsdp::AdamW optimizer(fsdp::parameters(*model), {.lr = 3e-3});
  for (int step = 1; step <= 100; ++step) {
    torch::manual_seed(1000 * step + world.rank);
    torch::Tensor x = torch::randn({64, 32});
    torch::Tensor loss = (model->forward(x) - x.sin().sum(1, /*keepdim=*/true)).square().mean();
    loss.backward();
    fsdp::clip_grad_norm_(*model, 1.0);
    optimizer.step();
    fsdp::zero_grad(*model);
    const double mean = fsdp::sum_over_ranks(world, loss.detach()).item<double>() / world.size;
    if (world.rank == 0 && step % 20 == 0) std::printf("step %3d  loss %.4f\n", step, mean);
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
