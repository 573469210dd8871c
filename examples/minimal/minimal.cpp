// fsdp launch --nproc 2 -- ./minimal      (or torchrun --no-python, srun, mpirun, or alone)
#include <fsdp/fsdp.h>
#include <torch/torch.h>

int main() {
  const fsdp::World world = fsdp::init();
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(32, 256), torch::nn::GELU(), torch::nn::Linear(256, 256),
                              torch::nn::GELU(), torch::nn::Linear(256, 1));
  fsdp::shard_where(*model, fsdp::by_type<torch::nn::LinearImpl>(), fsdp::Mesh::shard(world));
  fsdp::AdamW optimizer(fsdp::parameters(*model), {.lr = 3e-3});
  for (int step = 1; step <= 100; ++step) {
    torch::manual_seed(1000 * step + world.rank);  // each rank has its own data
    const torch::Tensor x = torch::randn({64, 32});
    const torch::Tensor loss = (model->forward(x) - x.sin().sum(1, true)).square().mean();
    loss.backward();
    optimizer.step();
    model->zero_grad();
    const double mean = fsdp::sum_over_ranks(world, loss.detach()).item<double>() / world.size;
    if (world.rank == 0 && step % 20 == 0) std::printf("step %3d  loss %.4f\n", step, mean);
  }
}
