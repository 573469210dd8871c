// Trains a list of tensors, without a module: every rank keeps all of them, and its share of gradients and optimizer.
//   fsdp launch --nproc 2 -- ./functional      (or torchrun --no-python, srun, mpirun, or alone)
#include <fsdp/fsdp.h>
#include <fsdp/functional/sharded_step.h>
#include <torch/torch.h>

#include <cstdio>

using fsdp::functional::ShardedStep;
using fsdp::functional::Slicing;
using Tensors = std::vector<torch::Tensor>;

// A network of two layers is four tensors and a function.
Tensors make_tensors() {
  Tensors tensors = {torch::randn({32, 128}) * 0.2, torch::zeros({128}), torch::randn({128, 1}) * 0.1,
                     torch::zeros({})};
  for (torch::Tensor& tensor : tensors) tensor.requires_grad_();
  return tensors;
}

torch::Tensor predict(const Tensors& tensors, const torch::Tensor& x) {
  return torch::tanh(torch::matmul(x, tensors[0]) + tensors[1]).matmul(tensors[2]) + tensors[3];
}

void train(const fsdp::World& world, Slicing slicing) {
  torch::manual_seed(1);  // equal values on every rank
  const Tensors tensors = make_tensors();
  ShardedStep step(fsdp::Mesh::shard(world), tensors, {.group_bytes = 8 << 10, .slicing = slicing});
  torch::optim::AdamW optimizer(step.slices(), torch::optim::AdamWOptions(3e-3));
  for (int n = 1; n <= 100; ++n) {
    torch::manual_seed(1000 * n + world.rank);
    const torch::Tensor x = torch::randn({64, 32});
    const torch::Tensor loss = (predict(tensors, x) - x.sin().sum(1, /*keepdim=*/true)).square().mean();
    loss.backward();
    step.reduce_gradients();
    step.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    step.gather_updates();
    const double mean = fsdp::sum_over_ranks(world, loss.detach()).item<double>() / world.size;
    if (world.rank == 0 && n % 20 == 0) std::printf("step %3d  loss %.4f\n", n, mean);
  }
  if (world.rank != 0) return;
  std::printf("%s: %d groups, %.1f KiB of slices and their gradients on each rank\n",
              slicing == Slicing::kFlat ? "flat" : "by tensor", static_cast<int>(step.num_groups()),
              static_cast<double>(step.slice_bytes()) / 1024);
}

int main() try {
  const fsdp::World world = fsdp::init();
  train(world, Slicing::kFlat);
  train(world, Slicing::kByTensor);  // the same losses
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
