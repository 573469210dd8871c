// Two models train against each other, each sharded, each with its optimizer. A generator learns to draw points from
// a distribution that it only knows through a discriminator, which is frozen during the generator's step.
//   fsdp launch --nproc 2 -- ./gan
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

namespace nn = torch::nn;

nn::Sequential make_network(int64_t in, int64_t out) {
  return nn::Sequential(nn::Linear(in, 64), nn::LeakyReLU(), nn::Linear(64, 64), nn::LeakyReLU(), nn::Linear(64, out));
}

void shard(nn::Sequential& network, const fsdp::Mesh& mesh) { fsdp::shard_where(*network, fsdp::by_size(500), mesh); }

void freeze(nn::Sequential& network, bool frozen) {
  for (torch::Tensor& parameter : network->parameters()) parameter.requires_grad_(!frozen);
}

torch::Tensor real_points(int64_t count) { return torch::tensor({2.0F, -1.0F}) + 0.5 * torch::randn({count, 2}); }

int main() try {
  const fsdp::World world = fsdp::init();
  const fsdp::Mesh mesh = fsdp::Mesh::shard(world);
  torch::manual_seed(1);
  nn::Sequential generator = make_network(4, 2);
  nn::Sequential discriminator = make_network(2, 1);
  shard(generator, mesh);
  shard(discriminator, mesh);
  fsdp::AdamW generator_optimizer(fsdp::parameters(*generator), {.lr = 1e-3, .beta1 = 0.5});
  // The decay keeps it from swinging around the solution.
  fsdp::AdamW discriminator_optimizer(fsdp::parameters(*discriminator), {.lr = 1e-3, .beta1 = 0.5, .weight_decay = 10});

  // How far the mean of generated points is from the mean of real ones.
  const auto distance = [&] {
    const torch::NoGradGuard no_grad;
    torch::manual_seed(5);
    const torch::Tensor mean = generator->forward(torch::randn({1000, 4})).mean(0);
    return (mean - torch::tensor({2.0F, -1.0F})).norm().item<double>();
  };
  const double before = distance();
  for (int step = 1; step <= 400; ++step) {
    torch::manual_seed(1000 * step + world.rank);
    const torch::Tensor fake = generator->forward(torch::randn({64, 4}));
    const torch::Tensor judged = discriminator->forward(torch::cat({real_points(64), fake.detach()}));
    const torch::Tensor discriminator_loss =
        torch::softplus(-judged.narrow(0, 0, 64)).mean() + torch::softplus(judged.narrow(0, 64, 64)).mean();
    discriminator_loss.backward();
    discriminator_optimizer.step();
    fsdp::zero_grad(*discriminator);

    freeze(discriminator, true);
    const torch::Tensor generator_loss =
        torch::softplus(-discriminator->forward(generator->forward(torch::randn({64, 4})))).mean();
    generator_loss.backward();
    generator_optimizer.step();
    fsdp::zero_grad(*generator);
    freeze(discriminator, false);
    const double losses[] = {fsdp::sum_over_ranks(world, discriminator_loss.detach()).item<double>() / world.size,
                             fsdp::sum_over_ranks(world, generator_loss.detach()).item<double>() / world.size};
    if (world.rank == 0 && step % 100 == 0)
      std::printf("step %3d  discriminator %.4f  generator %.4f\n", step, losses[0], losses[1]);
  }
  const double after = distance();
  if (world.rank == 0) std::printf("distance of the means: %.3f before, %.3f after\n", before, after);
  return after < 0.3 * before ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
