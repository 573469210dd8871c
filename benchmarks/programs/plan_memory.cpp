// The planner's memory against what the kernel counts: random decoders and setups, each in a process of its own as rank
// 0 of ranks that do not exist (comm::connect_fabric). Peak resident memory of steady steps, without what the process
// held before there was a model: with freed memory given back at once, with the cache of fsdp::init(), which keeps all
// of it for the next step, and as glibc's malloc is by itself, which keeps some. Prints the table of docs/plan.md.
#include <fsdp/fsdp.h>
#include <malloc.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>

#include "benchmarks/support/command_line.h"
#include "fsdp/base/check.h"
#include "fsdp/base/units.h"
#include "fsdp/comm/connection.h"
#include "fsdp/memory/host_cache.h"
#include "models/decoder.h"
#include "plan/report.h"
#include "train/base/process_memory.h"
#include "train/model/parallelize.h"
#include "train/model/recomputation.h"

namespace fsdp::benchmarks::plan_memory_program {
namespace {

enum class FreedMemory { kReturned, kCached, kKept };

constexpr int kSteps = 3;  // before those that count: the order is learnt, and moments are there

struct Case {
  models::DecoderConfig config;
  plan::Setup setup;
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  template <class T>
  T of(std::initializer_list<T> choices) {
    return *(choices.begin() + static_cast<std::ptrdiff_t>(random_() % choices.size()));
  }

 private:
  std::mt19937_64 random_;
};

Case draw_case(uint64_t seed) {
  Draw draw(seed);
  Case made;
  models::DecoderConfig& config = made.config = models::family_config("llama");
  config.hidden_size = draw.of<int64_t>({256, 384, 512});
  config.intermediate_size = config.hidden_size * draw.of<int64_t>({2, 3, 4});
  config.head_dim = 64;
  config.num_attention_heads = config.hidden_size / config.head_dim;
  config.num_key_value_heads = config.num_attention_heads / draw.of<int64_t>({1, 2});
  config.num_hidden_layers = draw.of<int64_t>({4, 6, 8, 10});
  config.vocab_size = draw.of<int64_t>({2048, 8192, 16384});
  config.tie_word_embeddings = draw.of({true, false});
  plan::Setup& setup = made.setup;
  setup.shards = draw.of<int64_t>({1, 2, 4, 8});
  setup.strategy = draw.of({Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams});
  setup.precision = plan::parse_planned_precision(draw.of({"fp32", "bf16"}));
  setup.optimizer = draw.of({plan::Optimizer::kAdamW, plan::Optimizer::kSgd, plan::Optimizer::kSgdMomentum});
  setup.transport = plan::Transport::kSharedMemory;  // as a fabric, it has no scratch
  setup.node_size = setup.shards;
  setup.work.microbatch_sequences = draw.of<int64_t>({1, 2, 4});
  setup.work.sequence_length = draw.of<int64_t>({128, 256, 512});
  setup.work.microbatches = draw.of<int64_t>({1, 2});
  setup.work.recompute = draw.of({models::Recompute::kNone, models::Recompute::kElementwise, models::Recompute::kGateUp,
                                  models::Recompute::kBlock});
  return made;
}

// A model that trains as the case says.
class Training {
 public:
  Training(const World& world, const models::DecoderConfig& config, const plan::Setup& setup)
      : setup_(setup), model_(shard(world, config, setup)) {
    const auto leaves = parameters(*model_.decoder);
    if (setup.optimizer == plan::Optimizer::kAdamW) {
      adamw_.emplace(leaves, AdamWOptions{});
    } else {
      sgd_.emplace(leaves, SGDOptions{.momentum = setup.optimizer == plan::Optimizer::kSgdMomentum ? 0.9 : 0});
    }
    const plan::Work& work = setup.work;
    ids_ = at::arange(work.microbatch_tokens(), at::kLong).view({work.microbatch_sequences, -1}) % config.vocab_size;
  }

  void step() {
    for (int64_t i = 0; i < setup_.work.microbatches; ++i) {
      const Microbatch scope(model_.root, i + 1 == setup_.work.microbatches);
      model_.decoder->loss(ids_, models::shift_labels(ids_).flatten()).backward();
    }
    adamw_ ? adamw_->step() : sgd_->step();
    zero_grad(*model_.decoder);
  }

 private:
  static train::ShardedModel shard(const World& world, const models::DecoderConfig& config, const plan::Setup& setup) {
    models::Decoder decoder(config);
    train::set_recomputation(decoder, {setup.work.recompute, 1});
    ShardOptions options;
    options.strategy = setup.strategy;
    if (setup.precision == plan::parse_planned_precision("bf16")) options.precision = Precision::bf16();
    return train::parallelize(std::move(decoder), Mesh::shard(world), options);
  }

  plan::Setup setup_;
  train::ShardedModel model_;
  std::optional<AdamW> adamw_;
  std::optional<SGD> sgd_;
  at::Tensor ids_;
};

int64_t resident() {
  malloc_trim(0);
  return train::process_memory().resident_bytes;
}

// What is loaded and started at first use is there afterwards: code, threads, the library's own caches.
void warm_up(const World& world, Case tiny) {
  tiny.config.hidden_size = tiny.config.intermediate_size = 64;
  tiny.config.num_attention_heads = tiny.config.num_key_value_heads = 1;
  tiny.config.num_hidden_layers = 1;
  tiny.config.vocab_size = 64;
  Training training(world, tiny.config, tiny.setup);
  for (int i = 0; i < 2; ++i) training.step();
}

int64_t measure_peak(const Case& chosen, FreedMemory freed) {
  if (freed == FreedMemory::kReturned) {
    mallopt(M_TRIM_THRESHOLD, 128 << 10);
    mallopt(M_MMAP_THRESHOLD, 128 << 10);  // loading LibTorch has raised it
  }
  if (freed == FreedMemory::kCached) FSDP_CHECK(enable_host_cache(), "the host cache is not there");
  at::set_num_threads(1);
  const World world = comm::connect_fabric(static_cast<int>(chosen.setup.shards), {});
  warm_up(world, chosen);
  const int64_t before = resident();
  Training training(world, chosen.config, chosen.setup);
  for (int i = 0; i < kSteps; ++i) training.step();
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts anew: proc(5)
  training.step();
  training.step();
  return train::process_memory().peak_bytes - before;
}

// In a process of its own, for memory that a case leaves behind is not the next one's.
int64_t peak_in_child(const Case& chosen, FreedMemory freed) {
  int ends[2];
  FSDP_CHECK(pipe(ends) == 0, "pipe failed");
  const pid_t child = fork();
  if (child == 0) {
    const int64_t peak = measure_peak(chosen, freed);
    const bool told = write(ends[1], &peak, sizeof(peak)) == sizeof(peak);
    _exit(told ? 0 : 1);
  }
  close(ends[1]);
  int64_t peak = 0;
  const bool heard = read(ends[0], &peak, sizeof(peak)) == sizeof(peak);
  close(ends[0]);
  waitpid(child, nullptr, 0);
  FSDP_CHECK(heard, "the measuring process ended without a figure");
  return peak;
}

class Errors {
 public:
  // In percent.
  double add(int64_t planned, int64_t measured) {
    const double error = 100 * (static_cast<double>(planned) / static_cast<double>(measured) - 1);
    sum_ += std::abs(error);
    worst_ = std::abs(error) > std::abs(worst_) ? error : worst_;
    ++count_;
    return error;
  }
  void print(const char* what) const {
    if (count_ == 0) return;
    std::printf("%s: mean absolute error %.2f%%, worst %+.2f%%\n", what, sum_ / count_, worst_);
  }

 private:
  double sum_ = 0, worst_ = 0;
  int count_ = 0;
};

constexpr std::pair<const char*, FreedMemory> kModes[] = {
    {"returned", FreedMemory::kReturned}, {"cached", FreedMemory::kCached}, {"kept", FreedMemory::kKept}};

// Of each case and mode a column: what was resident, and how far the plan is from it.
int run(int count, uint64_t seed, const std::string& only) {
  std::string header = "| seed | parameters | planned |", line = "|---|---|---|";
  for (const auto& [name, freed] : kModes) {
    if (!only.empty() && only != name) continue;
    header += std::string(" ") + name + " | error |";
    line += "---|---|";
  }
  std::printf("%s setup |\n%s---|\n", header.c_str(), line.c_str());
  std::array<Errors, std::size(kModes)> errors;
  for (int i = 0; i < count; ++i) {
    const uint64_t number = seed + static_cast<uint64_t>(i);
    const Case chosen = draw_case(number);
    const plan::Report report = plan::make_report(plan::decoder_model("drawn", chosen.config), chosen.setup);
    const int64_t planned = report.memory.total();
    std::printf("| %lu | %.1fM | %s |", number, static_cast<double>(report.parameters) / 1e6,
                format_bytes(planned).c_str());
    for (size_t mode = 0; mode < errors.size(); ++mode) {
      if (!only.empty() && only != kModes[mode].first) continue;
      const int64_t peak = peak_in_child(chosen, kModes[mode].second);
      std::printf(" %s | %+.2f%% |", format_bytes(peak).c_str(), errors[mode].add(planned, peak));
    }
    std::printf(" %s |\n", plan::describe(chosen.setup).c_str());
    std::fflush(stdout);
  }
  for (size_t mode = 0; mode < errors.size(); ++mode) errors[mode].print(kModes[mode].first);
  return 0;
}

}  // namespace

int run(int argc, char** argv) {
  CLI::App app("Peak resident memory of training steps beside the plan's.", "plan_memory");
  int count = 40;
  uint64_t seed = 1;
  app.add_option("--setups", count, "how many")->check(CLI::PositiveNumber);
  app.add_option("--seed", seed, "of the first; the others follow");
  std::string only;
  app.add_option("--only", only, "returned, cached or kept: what becomes of freed memory; all of them without it")
      ->check(CLI::IsMember({"returned", "cached", "kept"}));
  parse_or_exit(app, argc, argv);
  return run(count, seed, only);
}

}  // namespace fsdp::benchmarks::plan_memory_program
