// What sharding costs where there is nothing to compute and nobody to talk to: 100 units of one tiny linear layer, on
// one rank. Prints microseconds per forward and backward of the bare and of the sharded model, as one line of JSON.
// benchmarks/peer/hook_cost_fsdp2.py does the same.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/device_clock.h"

namespace fsdp::benchmarks::hook_cost_program {
namespace {

constexpr int kUnits = 100;
constexpr int64_t kWidth = 8;

struct Options {
  int warmup = 20;
  int iterations = 100;
  std::string precision = "fp32";
  std::string device = "cpu";
  bool copied = false;
};

torch::nn::Sequential make_model(c10::Device device) {
  torch::nn::Sequential model;
  for (int i = 0; i < kUnits + 1; ++i) model->push_back(torch::nn::Linear(kWidth, kWidth));
  model->to(device);
  return model;
}

std::vector<double> time_us(const Options& options, torch::nn::Sequential& model, at::ScalarType dtype,
                            const std::function<void()>& clear_gradients) {
  const c10::Device device = device_named(options.device);
  const at::Tensor x = torch::ones({4, kWidth}, at::device(device).dtype(dtype));
  DeviceClock clock(device);
  std::vector<double> times;
  for (int i = 0; i < options.warmup + options.iterations; ++i) {
    clock.collect();  // a device that is behind would make the host wait
    Stopwatch watch;
    model->forward(x).sum().backward();
    clear_gradients();
    if (i >= options.warmup) times.push_back(1e3 * watch.lap());
  }
  return times;
}

nlohmann::json run(const World& world, const Options& options) {
  const Precision precision = parse_precision(options.precision);
  const at::ScalarType dtype = precision.param.value_or(at::kFloat);
  nlohmann::json result;
  result["units"] = kUnits + 1;

  torch::nn::Sequential bare = make_model(device_named(options.device));
  bare->to(dtype);
  result["bare_us"] = time_us(options, bare, dtype, [&] { bare->zero_grad(); });

  // The last layer belongs to the root. Asking for the leaves tells the library that an optimizer exists.
  torch::nn::Sequential model = make_model(device_named(options.device));
  const Mesh mesh = Mesh::shard(world);
  ShardOptions shard_options;
  shard_options.precision = precision;
  if (options.copied) shard_options.whole_weights = WholeWeights::kCopied;
  shard_options.initial_weights = InitialWeights::kBroadcast;
  for (int i = 0; i < kUnits; ++i) fully_shard(*model[static_cast<size_t>(i)], mesh, shard_options);
  const Unit root = fully_shard(*model, mesh, shard_options);
  const std::vector<at::Tensor> leaves = parameters(*model);
  result["sharded_us"] = time_us(options, model, dtype, [&] { zero_grad(*model); });
  return result;
}

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times forward and backward of 100 tiny units; see scripts/bench.sh");
  app.add_option("--warmup", options.warmup, "passes that are not timed");
  app.add_option("--iterations", options.iterations, "passes that are timed")->check(CLI::PositiveNumber);
  app.add_option("--precision", options.precision, "fp32 or bf16");
  app.add_option("--device", options.device, "cpu, or cuda: the host's time, while a GPU computes")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_flag("--copied", options.copied, "gather and free weights in this world of one too");
  parse_or_exit(app, argc, argv);
  return options;
}

}  // namespace

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (options.device == "cuda") load_cuda();
  const World world = init();
  at::set_num_threads(1);
  const nlohmann::json result = run(world, options);
  if (world.rank == 0) std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace fsdp::benchmarks::hook_cost_program
