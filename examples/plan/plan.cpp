// What a rank of 128 will take to train this model, before memory for it exists; runs alone, in seconds.
#include <fsdp/fsdp.h>
#include <fsdp/plan/inspect.h>
#include <torch/torch.h>

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

int main() {
  constexpr int64_t kWidth = 4096, kRows = 2048;
  auto model = fsdp::deferred([&] {  // 6.4 billion parameters that are nowhere yet
    torch::nn::Sequential made;
    for (int i = 0; i < 48; ++i) made->push_back(Block(kWidth));
    return made;
  });
  fsdp::plan::InspectOptions options;
  options.shard.precision = fsdp::Precision::bf16();
  options.work.sequence_length = kRows;
  options.where = fsdp::by_type<BlockImpl>();
  options.forward = [&] { return model->forward(torch::zeros({kRows, kWidth}, torch::kBFloat16)).square().mean(); };
  fsdp::World world;
  world.size = 128;  // of ranks that do not exist
  const fsdp::Mesh mesh(world, {{"replicate", 4}, {"shard", 32}});
  for (const fsdp::Strategy strategy : {fsdp::Strategy::kOptimGradsParams, fsdp::Strategy::kHybridOptim}) {
    options.shard.strategy = strategy;
    const fsdp::plan::Report report = fsdp::plan::inspect(*model, mesh, options);
    std::printf("%s\n", fsdp::plan::to_text(report).c_str());
    if (report.memory.total() > int64_t{80} << 30) return 1;
  }
}
