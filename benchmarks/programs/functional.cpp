// One rank of a training run of a small Llama, timed step by step: functional ZeRO-2 once for each group size, or
// ZeRO-3 with one unit per block and the root. Rank 0 prints one line of JSON. benchmarks/peer/ddp.py does the same
// with PyTorch's DistributedDataParallel, with the same weights and tokens.
#include <fsdp/fsdp.h>
#include <malloc.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/measure.h"
#include "benchmarks/support/peer_inputs.h"
#include "fsdp/functional/sharded_step.h"
#include "kernels/operators/cross_entropy.h"
#include "models/decoder.h"

namespace fsdp::benchmarks::functional_program {
namespace {

constexpr double kLearningRate = 1e-3;
constexpr double kWeightDecay = 0.1;  // of every weight: a slice may hold parts of several
constexpr int kWatchedSteps = 2;      // after the timed ones

struct Options {
  std::vector<int64_t> shape = {32000, 512, 8, 1536, 8, 4};  // vocabulary, hidden, layers, FFN, heads, key heads
  std::string dtype = "fp32";
  std::vector<int64_t> groups = {16};  // MiB
  int64_t tokens = 16;                 // per rank
  int warmup = 3;
  int steps = 7;
  bool zero3 = false;
};

models::DecoderConfig config_of(const Options& options) {
  models::DecoderConfig config;
  config.vocab_size = options.shape[0];
  config.hidden_size = options.shape[1];
  config.num_hidden_layers = options.shape[2];
  config.intermediate_size = options.shape[3];
  config.num_attention_heads = options.shape[4];
  config.num_key_value_heads = options.shape[5];
  config.head_dim = 64;
  config.rms_norm_eps = 1e-5;
  return config;
}

// Resident bytes of this process in which pages shared by n processes count 1/n.
int64_t proportional_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    long kib = 0;
    if (std::sscanf(line.c_str(), "Pss: %ld kB", &kib) == 1) return kib * 1024;
  }
  return 0;
}

// The most that was seen until stop(). Looking costs time, so nothing is timed meanwhile.
class MemoryWatch {
 public:
  int64_t stop() {
    stop_ = true;
    thread_.join();
    return peak_;
  }

 private:
  void watch() {
    while (!stop_) {
      peak_ = std::max(peak_, proportional_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  std::atomic<bool> stop_{false};
  int64_t peak_ = 0;
  std::thread thread_{[this] { watch(); }};
};

// torch.optim.AdamW(fused=True), which the peer uses: for 16-bit slices, because fsdp::AdamW wants fp32.
class FusedAdamW {
 public:
  explicit FusedAdamW(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      weights_.push_back(tensor.detach());
      leaves_.push_back(tensor);
      averages_.push_back(at::zeros_like(tensor.detach()));
      squares_.push_back(at::zeros_like(tensor.detach()));
      steps_.push_back(at::zeros({}, at::kFloat));
    }
  }

  void step() {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& leaf : leaves_) gradients.push_back(leaf.grad());
    for (at::Tensor& count : steps_) count.add_(1);
    at::_fused_adamw_(weights_, gradients, averages_, squares_, {}, steps_, kLearningRate, 0.9, 0.999, kWeightDecay,
                      1e-8, /*amsgrad=*/false, /*maximize=*/false);
  }

 private:
  std::vector<at::Tensor> leaves_, weights_, averages_, squares_, steps_;
};

class Training {
 public:
  Training(const World& world, const Options& options, int64_t group_mib)
      : world_(world), options_(options), model_(config_of(options)) {
    fill_weights(model_);
    options_.zero3 ? shard_model() : shard_step(group_mib);
    result_["group_mib"] = group_mib;
    const at::Tensor ids = make_tokens(options_.tokens, world_.rank, options_.shape[0]);
    inputs_ = ids.narrow(0, 0, options_.tokens).unsqueeze(0);
    targets_ = ids.narrow(0, 1, options_.tokens);
  }

  nlohmann::json run() {
    for (int step = 0; step < options_.warmup + options_.steps; ++step) {
      Stopwatch watch;
      const float loss = run_step();
      if (step >= options_.warmup) result_["step_ms"].push_back(watch.lap());
      result_["losses"].push_back(loss);
    }
    MemoryWatch watch;
    for (int step = 0; step < kWatchedSteps; ++step) run_step();
    result_["pss_bytes"] = sum_over_ranks(world_, torch::tensor({watch.stop()})).item<int64_t>();
    return result_;
  }

 private:
  AdamWOptions adamw_options() const { return {.lr = kLearningRate, .weight_decay = kWeightDecay}; }

  void shard_step(int64_t group_mib) {
    if (options_.dtype == "bf16") model_->to(at::kBFloat16);
    const auto step = std::make_shared<functional::ShardedStep>(
        Mesh::shard(world_), model_->parameters(), functional::ShardedStepOptions{.group_bytes = group_mib << 20});
    std::function<void()> optimize;
    if (options_.dtype == "bf16") {
      optimize = [optimizer = std::make_shared<FusedAdamW>(step->slices())] { optimizer->step(); };
    } else {
      optimize = [optimizer = std::make_shared<AdamW>(step->slices(), adamw_options())] { optimizer->step(); };
    }
    update_ = [step, optimize] {
      step->reduce_gradients();
      optimize();
      for (const at::Tensor& slice : step->slices()) slice.mutable_grad().reset();
      step->gather_updates();
    };
  }

  // bf16: gathered weights; the sharded ones, gradients that travel and the optimizer are fp32.
  void shard_model() {
    const Mesh mesh = Mesh::shard(world_);
    ShardOptions shard_options;
    shard_options.precision = parse_precision(options_.dtype);
    for (const auto& layer : *model_->layers()) fully_shard(*layer, mesh, shard_options);
    fully_shard(*model_, mesh, shard_options);
    const auto optimizer = std::make_shared<AdamW>(parameters(*model_), adamw_options());
    update_ = [this, optimizer] {
      optimizer->step();
      zero_grad(*model_);
    };
  }

  float run_step() {
    const at::Tensor logits = model_->forward(inputs_);
    const at::Tensor loss = kernels::cross_entropy(logits.flatten(0, 1), targets_);
    loss.backward();
    update_();
    return loss.item<float>();
  }

  World world_;
  Options options_;
  models::Decoder model_;
  std::function<void()> update_;
  at::Tensor inputs_, targets_;
  nlohmann::json result_;
};

nlohmann::json run(const World& world, const Options& options) {
  nlohmann::json result;
  for (const int64_t group_mib : options.zero3 ? std::vector<int64_t>{0} : options.groups) {
    result["runs"].push_back(Training(world, options, group_mib).run());
    malloc_trim(0);  // the next one starts with as little memory as this one
  }
  return result;
}

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times training steps of functional ZeRO-2 and of ZeRO-3; see scripts/bench.sh");
  app.add_option("--shape", options.shape, "vocabulary, hidden, layers, FFN, heads, key heads")->expected(6);
  app.add_option("--dtype", options.dtype, "of the weights")->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--groups", options.groups, "group sizes in MiB, one run each")->check(CLI::PositiveNumber);
  app.add_option("--tokens", options.tokens, "per rank")->check(CLI::PositiveNumber);
  app.add_option("--warmup", options.warmup, "steps that are not timed");
  app.add_option("--steps", options.steps, "steps that are timed")->check(CLI::PositiveNumber);
  app.add_flag("--zero3", options.zero3, "fully_shard instead of ShardedStep");
  parse_or_exit(app, argc, argv);
  return options;
}

}  // namespace

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const World world = init();
  at::set_num_threads(1);
  const nlohmann::json result = run(world, options);
  if (world.rank == 0) std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace fsdp::benchmarks::functional_program
