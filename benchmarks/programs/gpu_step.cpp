// Training steps of a model on one GPU: bf16 with fp32 main weights, reductions and moments, AdamW, clipping,
// gradients accumulated over microbatches. Prints one line of JSON. benchmarks/peer/gpu_step_fsdp2.py does the same.
//
//   gpu_step --preset smollm3-3b --sequence 8192 --accumulation 4 --recompute elementwise
//   gpu_step ... --ranks 8 --gigabytes-per-second 330     rank 0 of 8 that do not exist, over a network of that speed
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/device_clock.h"
#include "benchmarks/support/peer_inputs.h"
#include "fsdp/base/device_memory.h"
#include "fsdp/comm/connection.h"
#include "models/config/presets.h"
#include "train/model/graphed_blocks.h"
#include "train/model/parallelize.h"
#include "train/model/recomputation.h"

namespace fsdp::benchmarks::gpu_step_program {
namespace {

struct Options {
  std::string device = "cuda";
  std::string preset = "smollm3-3b";
  int64_t layers = 0;
  int64_t sequence = 8192;
  int64_t microbatch = 1;
  int64_t accumulation = 4;
  std::string recompute = "none";
  std::string projections = "separate";
  bool graphs = false;
  std::string strategy = "optim_grads_params";
  bool copied = false;
  int ranks = 1;
  double gigabytes_per_second = 0;
  int warmup = 2;
  int steps = 5;
};

models::DecoderConfig config_of(const Options& options) {
  const models::Preset* preset = models::find_preset(options.preset);
  if (preset == nullptr) {
    throw Error(ErrorCode::kUsage, "[gpu_step] --preset: got " + options.preset + ", which is none");
  }
  models::DecoderConfig config = preset->config;
  if (options.layers > 0) config.num_hidden_layers = options.layers;
  return config;
}

World world_of(const Options& options) {
  if (options.ranks == 1) return fsdp::init();
  comm::FabricModel network;
  network.bytes_per_second = 1e9 * options.gigabytes_per_second;
  return comm::connect_fabric(options.ranks, network);
}

c10::Device device_of(const Options& options) {
  const c10::Device device = device_named(options.device);
  if (!device.is_cpu()) load_cuda();
  return device;
}

class GpuStep {
 public:
  explicit GpuStep(const Options& options)
      : options_(options),
        config_(config_of(options)),
        recompute_(train::parse_recomputation(options.recompute)),
        device_(device_of(options)),
        model_(shard(world_of(options))),
        optimizer_(decay_groups(*model_.decoder, /*weight_decay=*/0.1), AdamWOptions{.lr = 1e-4}),
        leaves_(parameters(*model_.decoder)),
        clock_(device_) {
    const int64_t count = options.microbatch * options.sequence;
    const at::Tensor ids = make_tokens(count, 0, config_.vocab_size);
    ids_BT_ = ids.narrow(0, 0, count).view({options.microbatch, options.sequence}).to(device_);
    targets_N_ = ids.narrow(0, 1, count).to(device_);
  }

  nlohmann::json run() {
    for (int step = 0; step < options_.warmup; ++step) run_step();
    clock_.collect();
    model_.root.reset_counters();
    fsdp::reset_peak_memory(device_);
    const int64_t retries = device_memory(device_).value_or(DeviceMemory()).retries;
    Stopwatch watch;
    for (int step = 0; step < options_.steps; ++step) run_step();
    result_["laps_ms"] = clock_.collect();
    result_["step_ms"] = watch.lap() / options_.steps;
    result_["losses"] = {first_loss_.item<float>(), last_loss_.item<float>()};
    check_that_it_learned();
    result_["tokens_per_step"] = tokens_per_step();
    result_["flops_per_token"] = models::flops_per_token(config_, options_.sequence);
    result_["parameters"] = models::num_parameters(config_);
    add_communication();
    add_memory(retries);
    return result_;
  }

 private:
  train::ShardedModel shard(const World& world) {
    models::Decoder decoder = train::deferred_zeros(config_);
    train::set_recomputation(decoder, recompute_);
    ShardOptions shard_options;
    shard_options.strategy = parse_strategy(options_.strategy);
    shard_options.precision = Precision::bf16();
    if (options_.graphs) train::keep_addresses(shard_options);
    if (options_.copied) shard_options.whole_weights = WholeWeights::kCopied;
    if (!device_.is_cpu()) shard_options.device = device_;
    train::ShardedModel model =
        train::parallelize(std::move(decoder), train::make_mesh(world, /*replicas=*/1), shard_options);
    train::set_projections(model, options_.projections);
    if (options_.graphs) train::graph_blocks(model);
    // On the device, where billions of random numbers take no time; equal numbers would need less power than real
    // weights. A leaf is a slice, flat whatever it is a slice of.
    const at::NoGradGuard no_grad;
    for (const at::Tensor& leaf : parameters(*model.decoder))
      logical_sizes(leaf).size() > 1 ? leaf.normal_(0, 0.02) : leaf.fill_(1);
    return model;
  }

  // Every step sees the same tokens. What ranks that do not exist send is no gradient.
  void check_that_it_learned() const {
    const auto first = first_loss_.item<float>(), last = last_loss_.item<float>();
    if (options_.ranks > 1 || last < first) return;
    throw Error(ErrorCode::kUsage, "[gpu_step] the loss went from " + std::to_string(first) + " to " +
                                       std::to_string(last) +
                                       ", expected a fall: steps that learn nothing are not measured");
  }

  int64_t tokens_per_step() const { return options_.accumulation * options_.microbatch * options_.sequence; }

  void run_step() {
    clock_.mark("");
    for (int64_t micro = 0; micro < options_.accumulation; ++micro) {
      const Microbatch scope(model_.root, /*is_last=*/micro + 1 == options_.accumulation);
      const at::Tensor loss = model_.decoder->loss(ids_BT_, targets_N_) / static_cast<double>(options_.accumulation);
      clock_.mark("forward");
      loss.backward();
      clock_.mark("backward");
      last_loss_ = loss.detach();
      if (!first_loss_.defined()) first_loss_ = last_loss_;
    }
    // The factor stays on the device: nothing here waits for it.
    optimizer_.step(grad_norm(leaves_, /*max_norm=*/1.0).factor);
    zero_grad(*model_.decoder);
    clock_.mark("optimizer");
  }

  void add_communication() {
    const Counters counters = model_.root.counters();
    const double steps = options_.steps;
    result_["exposed_gather_ms"] = counters.exposed_gather_ms / steps;
    result_["exposed_reduce_ms"] = counters.exposed_reduce_ms / steps;
    result_["gathers"] = static_cast<double>(counters.gathers) / steps;
    result_["gather_bytes"] = static_cast<double>(counters.gather_bytes) / steps;
    result_["reduce_bytes"] = static_cast<double>(counters.reduce_bytes) / steps;
  }

  // What must be there at the worst moment, which is the start of the backward or a block's backward.
  void add_memory(int64_t retries_before) {
    const int64_t tokens = options_.microbatch * options_.sequence, wide = config_.intermediate_size;
    const MemoryCategories held = model_.root.memory();
    nlohmann::json& formula = result_["memory_formula"];
    formula["main and model weights"] = held.params;
    formula["gradients"] = held.grads;
    formula["gathered, reduced, idle"] = held.gathered + held.reduce + held.idle;
    formula["moments"] = optimizer_.state_bytes();
    formula["activations of blocks"] =
        config_.num_hidden_layers * tokens * train::kept_bytes_per_token(config_, recompute_.what, 2);
    formula["embedding's output, last norm"] = 4 * tokens * config_.hidden_size;
    const int64_t logits = std::min<int64_t>(int64_t{512} << 20, 2 * tokens * config_.vocab_size);
    const int64_t block = 2 * tokens * (3 * wide + 4 * config_.hidden_size);
    formula["logits of a chunk, or a block's backward"] = std::max(logits, block);
    int64_t total = 0;
    for (const auto& [name, bytes] : formula.items()) total += bytes.get<int64_t>();
    formula["total"] = total;
    if (const auto memory = device_memory(device_)) {
      result_["memory"] = {{"peak_allocated", memory->peak_allocated},
                           {"peak_reserved", memory->peak_reserved},
                           {"retries", memory->retries - retries_before}};
    }
  }

  Options options_;
  models::DecoderConfig config_;
  train::Recomputation recompute_;
  c10::Device device_;
  train::ShardedModel model_;
  AdamW optimizer_;
  std::vector<at::Tensor> leaves_;
  DeviceClock clock_;
  at::Tensor ids_BT_, targets_N_, first_loss_, last_loss_;
  nlohmann::json result_;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times training steps on one GPU; see scripts/bench_gpu.sh");
  app.add_option("--device", options.device, "cuda, or cpu to try the program")->check(CLI::IsMember({"cuda", "cpu"}));
  app.add_option("--preset", options.preset, "the model's shape");
  app.add_option("--layers", options.layers, "that many blocks in place of the preset's")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--sequence", options.sequence, "tokens of a sequence")->check(CLI::PositiveNumber);
  app.add_option("--microbatch", options.microbatch, "sequences at a time")->check(CLI::PositiveNumber);
  app.add_option("--accumulation", options.accumulation, "microbatches of a step")->check(CLI::PositiveNumber);
  app.add_option("--projections", options.projections, "separate, or fused: q, k, v and gate, up in one product each")
      ->check(CLI::IsMember({"separate", "fused"}));
  app.add_flag("--graphs", options.graphs, "replay each block's forward and backward as CUDA graphs");
  app.add_option("--recompute", options.recompute, "what blocks compute again in the backward")
      ->check(CLI::IsMember({"none", "elementwise", "gate_up", "block"}));
  app.add_option("--strategy", options.strategy, "as shard.strategy");
  app.add_flag("--copied", options.copied, "gather and free weights in a world of one too");
  app.add_option("--ranks", options.ranks, "of a world of which this is rank 0 and the others do not exist")
      ->check(CLI::PositiveNumber);
  app.add_option("--gigabytes-per-second", options.gigabytes_per_second, "of the network to ranks that do not exist");
  app.add_option("--warmup", options.warmup, "steps before")->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "steps that are timed")->check(CLI::PositiveNumber);
  parse_or_exit(app, argc, argv);
  if ((options.ranks > 1) != (options.gigabytes_per_second > 0)) {
    throw Error(ErrorCode::kUsage, "[gpu_step] --ranks above 1 and --gigabytes-per-second above 0 belong together");
  }
  return options;
}

}  // namespace

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::printf("%s\n", GpuStep(options).run().dump().c_str());
  return 0;
}

}  // namespace fsdp::benchmarks::gpu_step_program
