// A convolutional network with BatchNorm learns a field from another: a diffused source, on a periodic grid. Every rank
// has its own samples; the running statistics, which evaluation uses, are the mean over the ranks (BufferSync::kMean).
//   fsdp launch --nproc 2 -- ./cnn
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

namespace nn = torch::nn;

struct StageImpl : nn::Module {
  StageImpl(int64_t in, int64_t out)
      : conv(register_module("conv",
                             nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1).padding_mode(torch::kCircular)))),
        norm(register_module("norm", nn::BatchNorm2d(out))) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::gelu(norm(conv(x))); }
  nn::Conv2d conv;
  nn::BatchNorm2d norm;
};
TORCH_MODULE(Stage);

struct Network : nn::Module {
  torch::Tensor forward(const torch::Tensor& source) {
    return outlet(fine(coarse(inlet(source.contiguous(torch::MemoryFormat::ChannelsLast)))) + source);
  }
  Stage inlet = register_module("inlet", Stage(1, 16));
  Stage coarse = register_module("coarse", Stage(16, 32));
  Stage fine = register_module("fine", Stage(32, 16));
  nn::Conv2d outlet = register_module("outlet", nn::Conv2d(nn::Conv2dOptions(16, 1, 1)));
};

// Explicit steps of diffusion, which the network does not know.
torch::Tensor diffused(torch::Tensor field) {
  for (int step = 0; step < 4; ++step) {
    torch::Tensor neighbours = torch::zeros_like(field);
    for (const int64_t dim : {2, 3}) neighbours += field.roll({1}, {dim}) + field.roll({-1}, {dim});
    field = field + 0.2 * (neighbours - 4 * field);
  }
  return field;
}

torch::Tensor loss_of(Network& network, uint64_t seed) {
  torch::manual_seed(seed);
  const torch::Tensor source = torch::randn({8, 1, 16, 16});
  const torch::Tensor target = diffused(source);
  return (network.forward(source) - target).square().mean() / target.square().mean();
}

int main() try {
  const fsdp::World world = fsdp::init();
  torch::manual_seed(1);
  const auto network = std::make_shared<Network>();
  fsdp::ShardOptions options;
  options.buffers = fsdp::BufferSync::kMean;
  const fsdp::Unit root = fsdp::shard_where(*network, fsdp::by_type<StageImpl>(), fsdp::Mesh::shard(world), options);
  if (world.rank == 0) std::printf("%s", root.describe().c_str());
  fsdp::AdamW optimizer(fsdp::parameters(*network), {.lr = 3e-3});
  for (int step = 1; step <= 120; ++step) {
    const torch::Tensor loss = loss_of(*network, 1000 * step + world.rank);
    loss.backward();
    optimizer.step();
    fsdp::zero_grad(*network);
    const double mean = fsdp::sum_over_ranks(world, loss.detach()).item<double>() / world.size;
    if (world.rank == 0 && step % 40 == 0) std::printf("step %3d  relative error %.4f\n", step, mean);
  }
  network->eval();
  const fsdp::ForwardOnly evaluation(root);
  const double error = loss_of(*network, 7).item<double>();  // equal statistics: every rank gets the same number
  if (world.rank == 0) std::printf("evaluation  relative error %.4f\n", error);
  return error < 0.3 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
