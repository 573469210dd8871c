// One rank of a training run of a 57.9M-parameter Llama, timed step by step: fp32, or bf16 with fp32 main weights and
// reductions. Sharded: ZeRO-3 over however many ranks it was started with, one unit per block and the root. --plain:
// the same model and optimizer on one process (in bf16 sharded over this one alone, which keeps the two copies of
// weights). Rank 0 prints one line of JSON. benchmarks/peer/step_time_fsdp2.py does the same with the same weights and
// tokens.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/measure.h"
#include "benchmarks/support/peer_inputs.h"
#include "fsdp/memory/host_cache.h"
#include "models/decoder.h"

namespace fsdp::benchmarks::step_time_program {
namespace {

struct Options {
  int64_t tokens = 128;  // per rank
  int warmup = 3;
  int steps = 7;
  bool plain = false;
  bool bf16 = false;
  int floor_ranks = 2;  // for --plain: whose share of the traffic is copied for comparison
};

models::DecoderConfig llama_58m() {
  models::DecoderConfig config;
  config.vocab_size = 32000;
  config.hidden_size = 512;
  config.intermediate_size = 1536;
  config.num_hidden_layers = 8;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 64;
  config.rms_norm_eps = 1e-5;
  return config;
}

// Numbers of 4 bytes that a forward keeps for its backward, and the gradient of the logits.
int64_t activation_bytes(const models::DecoderConfig& config, int64_t tokens) {
  const int64_t query = config.num_attention_heads * config.head_dim;
  const int64_t key = config.num_key_value_heads * config.head_dim;
  const int64_t attention = 2 * config.hidden_size + 2 * query + 2 * key;     // input, its norm, q and output, k and v
  const int64_t mlp = 2 * config.hidden_size + 3 * config.intermediate_size;  // input, its norm, gate, up, product
  return 4 * tokens * (config.num_hidden_layers * (attention + mlp) + 2 * config.hidden_size + 2 * config.vocab_size);
}

class StepTime {
 public:
  StepTime(const World& world, const Options& options)
      : world_(world), options_(options), config_(llama_58m()), program_bytes_(process_memory().resident_bytes) {
    model_ = models::Decoder(config_);
    fill_weights(model_);
    num_parameters_ = models::num_parameters(config_);
    if (!options_.plain || options_.bf16) shard();
    optimizer_.emplace(decay_groups(*model_, /*weight_decay=*/0.1), AdamWOptions{.lr = 1e-3});
    const at::Tensor ids = make_tokens(options_.tokens, world_.rank, config_.vocab_size);
    inputs_ = ids.narrow(0, 0, options_.tokens).unsqueeze(0);
    targets_ = ids.narrow(0, 1, options_.tokens);
  }

  nlohmann::json run() {
    reset_peak_memory();
    result_["start_bytes"] = process_memory().resident_bytes;
    for (int step = 0; step < options_.warmup; ++step) run_step();
    forget_times();
    if (root_) root_->reset_counters();
    const TraceCollector trace;
    for (int step = 0; step < options_.steps; ++step) run_step();
    for (const auto& [name, ms] : sum_by_name(trace)) result_["trace_ms"][name] = ms / options_.steps;
    add_memory();
    if (root_) add_communication();
    if (options_.plain) result_["copy_floor_ms"] = copy_floor_ms();
    return result_;
  }

 private:
  void shard() {
    const Mesh mesh = Mesh::shard(world_);
    ShardOptions options;
    if (options_.bf16) options.precision = Precision::bf16();
    for (const auto& layer : *model_->layers()) block_bytes_ = fully_shard(*layer, mesh, options).largest_unit_bytes();
    root_ = fully_shard(*model_, mesh, options);
  }

  void run_step() {
    const Usage before = process_usage();
    Stopwatch whole, part;
    const at::Tensor loss = model_->loss(inputs_, targets_);
    result_["forward_ms"].push_back(part.lap());
    loss.backward();
    result_["backward_ms"].push_back(part.lap());
    optimizer_->step();
    zero_grad(*model_);
    result_["optimizer_ms"].push_back(part.lap());
    result_["step_ms"].push_back(whole.lap());
    const Usage after = process_usage();
    result_["cpu_ms"].push_back(after.cpu_ms - before.cpu_ms);
    result_["page_faults"].push_back(after.page_faults - before.page_faults);
    if (!result_.contains("first_loss")) result_["first_loss"] = loss.item<float>();
    result_["last_loss"] = loss.item<float>();
  }

  void forget_times() {
    for (const char* name : {"forward_ms", "backward_ms", "optimizer_ms", "step_ms", "cpu_ms", "page_faults"}) {
      result_.erase(name);
    }
  }

  void add_communication() {
    const Counters counters = root_->counters();
    const double steps = options_.steps;
    result_["exposed_gather_ms"] = counters.exposed_gather_ms / steps;
    result_["exposed_reduce_ms"] = counters.exposed_reduce_ms / steps;
    result_["gathers"] = static_cast<double>(counters.gathers) / steps;
    result_["reduces"] = static_cast<double>(counters.reduces) / steps;
    result_["buffer_allocations"] = counters.buffer_allocations;
  }

  // What a rank must hold at the worst moment of a step, beside what it held.
  void add_memory() {
    const int64_t whole = 4 * num_parameters_, ranks = root_ ? world_.size : 1;
    nlohmann::json& formula = result_["memory_formula"];
    formula["program and libraries"] = program_bytes_;
    formula["weights"] = whole / ranks;
    formula["gradients"] = whole / ranks;
    formula["moments"] = 2 * whole / ranks;
    formula["activations"] = activation_bytes(config_, options_.tokens);
    if (root_) {
      const int64_t root_bytes = root_->largest_unit_bytes();
      const int64_t staged = ranks - 1;  // shares of a unit that arrive from the others while it is reduced
      formula["gathered: root and 2 blocks"] = root_bytes + 2 * block_bytes_;
      formula["reduced: root and 3 blocks, staging"] = (root_bytes + 3 * block_bytes_) / ranks * (ranks + staged);
      formula["one gradient before it is packed"] = 4 * config_.vocab_size * config_.hidden_size;
    }
    int64_t total = 0;
    for (const auto& [name, bytes] : formula.items()) total += bytes.get<int64_t>();
    formula["total"] = total;
    result_["peak_bytes"] = process_memory().peak_bytes;
    const HostCacheStats cache = host_cache_stats();
    result_["host_cache"] = {{"peak held MiB", cache.peak_held_bytes >> 20}, {"growths", cache.growths}};
  }

  // Each rank receives the blocks twice, the root once, and a share of every other rank's gradients.
  double copy_floor_ms() const {
    const int64_t root_numel = 2 * config_.vocab_size * config_.hidden_size;
    const int64_t received = 4 * (3 * num_parameters_ - root_numel);
    return copy_ms(received / options_.floor_ranks * (options_.floor_ranks - 1));
  }

  World world_;
  Options options_;
  models::DecoderConfig config_;
  int64_t program_bytes_;
  int64_t num_parameters_ = 0;
  int64_t block_bytes_ = 0;
  models::Decoder model_{nullptr};
  std::optional<Unit> root_;
  std::optional<AdamW> optimizer_;
  at::Tensor inputs_, targets_;
  nlohmann::json result_;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times training steps of a small Llama; see scripts/bench.sh");
  app.add_option("--tokens", options.tokens, "per rank")->check(CLI::PositiveNumber);
  app.add_option("--warmup", options.warmup, "steps that are not timed");
  app.add_option("--steps", options.steps, "steps that are timed")->check(CLI::PositiveNumber);
  app.add_flag("--plain", options.plain, "one process, not sharded");
  app.add_flag("--bf16", options.bf16, "compute in bf16");
  app.add_option("--floor-ranks", options.floor_ranks, "of --plain: ranks whose traffic is copied for comparison");
  parse_or_exit(app, argc, argv);
  return options;
}

}  // namespace

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const World world = init();
  at::set_num_threads(1);
  const nlohmann::json result = StepTime(world, options).run();
  if (world.rank == 0) std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace fsdp::benchmarks::step_time_program
