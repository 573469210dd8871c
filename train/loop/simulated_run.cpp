#include "train/loop/simulated_run.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "fsdp/base/units.h"
#include "train/base/console.h"
#include "train/base/determinism.h"
#include "train/base/device.h"
#include "train/base/format.h"
#include "train/base/process_memory.h"
#include "train/data/prefetch.h"
#include "train/loop/pace.h"
#include "train/loop/plan_of_run.h"
#include "train/loop/preparation.h"
#include "train/loop/trainer.h"
#include "train/model/build_model.h"

namespace fsdp::train {
namespace {

constexpr int64_t kLearningSteps = 2;  // after which the order of units is known

[[noreturn]] void refuse_world(const std::string& message) {
  throw Error(ErrorCode::kUsage, "[train] --simulate-" + message);
}

void check_world(const Config& config, const SimulatedWorld& simulated) {
  const int64_t ranks = simulated.ranks, replicas = config.shard.replicas;
  if (ranks < 2 || ranks > plan::kMostRanks)
    refuse_world("world: got " + std::to_string(ranks) + ", expected 2 to " + std::to_string(plan::kMostRanks) +
                 " ranks. One rank needs no simulation: leave it out.");
  if (config.mesh.tp > 1 || config.mesh.cp > 1)
    refuse_world("world: got it with mesh.tp=" + std::to_string(config.mesh.tp) +
                 " and mesh.cp=" + std::to_string(config.mesh.cp) +
                 ", expected 1: one rank has no part of a sum of activations that means "
                 "anything. `fsdp plan` predicts such a run.");
  if (config.mesh.pp > 1 || config.mesh.ep > 1)
    refuse_world("world: got it with mesh.pp=" + std::to_string(config.mesh.pp) +
                 " and mesh.ep=" + std::to_string(config.mesh.ep) +
                 ", expected 1: there is no other rank to compute the rest. `fsdp plan` predicts such a run.");
  if (config.tune.loss == "dpo")
    refuse_world(
        "world: got tune.loss = dpo, whose references all ranks compute together, expected sft. Leave one of them "
        "out.");
  if (config.tune.lora_init != "random")
    refuse_world("world: got tune.lora_init = " + config.tune.lora_init +
                 ", which all ranks compute together, expected random. Leave one of them out.");
  if (ranks % replicas != 0) {
    const int64_t below = ranks / replicas * replicas;
    refuse_world("world: got " + std::to_string(ranks) + " ranks with shard.replicas " + std::to_string(replicas) +
                 ", expected a multiple of it: " + (below >= 2 ? std::to_string(below) + " or " : "") +
                 std::to_string(below + replicas) + ".");
  }
  if (simulated.steps <= kLearningSteps)
    refuse_world("steps: got " + std::to_string(simulated.steps) + ", expected at least " +
                 std::to_string(kLearningSteps + 1) + ": the first " + std::to_string(kLearningSteps) +
                 " learn the order of the units.");
}

// Keys of what this run will not do.
std::string keys_left_out(const Config& config) {
  const std::pair<bool, const char*> keys[] = {
      {config.checkpoint.resume != "never", "checkpoint.resume"},
      {config.checkpoint.every_steps > 0, "checkpoint.every_steps"},
      {config.checkpoint.every_minutes > 0, "checkpoint.every_minutes"},
      {config.sample.every_steps > 0, "sample.every_steps"},
      {config.train.eval_every > 0, "train.eval_every"},
      {config.train.fit_minutes > 0, "train.fit_minutes"},
      {config.train.max_minutes > 0, "train.max_minutes"},
      {config.check.compute_twice_every > 0, "check.compute_twice_every"},
      {config.check.compare_replicas_every > 0, "check.compare_replicas_every"},
      {!config.tune.lora_from.empty(), "tune.lora_from"},
  };
  std::string text;
  for (const auto& [is_asked, key] : keys) {
    if (is_asked) text += (text.empty() ? "" : ", ") + std::string(key);
  }
  return text;
}

// The weights are pieces of rank 0's, put together: they shall stay as they are, and nobody act on their numbers.
Config configuration_of(Config config, int64_t steps) {
  config.train.steps = steps;
  config.train.warmup_steps = config.train.warmup_tokens = config.train.decay_steps = config.train.max_tokens = 0;
  config.train.batch_warmup_sequences = config.train.batch_warmup_steps = 0;
  config.data.sequence_warmup_steps = config.data.sequence_warmup_length = 0;
  config.train.lr = 0;
  config.train.on_nonfinite = "skip";
  config.train.on_spike = "off";
  config.check.compute_twice_every = 0;
  return config;
}

struct MeasuredStep {
  double ms = 0;
  double exposed_gather_ms = 0;
  double exposed_reduce_ms = 0;
};

// Of a field over all steps but those that learn.
template <class Field>
std::vector<double> sorted_field(const std::vector<MeasuredStep>& steps, Field field) {
  std::vector<double> values;
  for (size_t i = kLearningSteps; i < steps.size(); ++i) values.push_back(steps[i].*field);
  std::sort(values.begin(), values.end());
  return values;
}

class SimulatedRun {
 public:
  SimulatedRun(const Config& config, const SimulatedWorld& simulated, const World& world, Preparation prepared)
      : config_(config),
        simulated_(simulated),
        world_(world),
        threads_(std::move(prepared.threads)),
        device_(prepared.device),
        console_(Console::detect(stdout, world.rank)),
        memory_before_(process_memory().resident_bytes),
        splits_(std::move(prepared.splits)),
        plan_(plan_run(config, prepared.choice, world)),
        forecast_(forecast_simulated(config, prepared.choice, plan_, simulated.network)),
        model_(build_model(prepared.choice, prepared.tuning, config, world, prepared.device)),
        batches_(config, model_.place, splits_.train),
        prefetch_(batches_),
        trainer_(config.train, world, prefetch_, model_, config.check, config.optimizer) {}

  void run() {
    print_banner();
    for (int64_t step = 0; step < simulated_.steps; ++step) take_step();
    print_result();
  }

 private:
  void print_banner() {
    const comm::FabricModel& network = simulated_.network;
    console_.line("train: rank 0 of " + std::to_string(world_.size) +
                  format_text(" ranks, the others of which do not exist; between them %.4g Gb/s and %.4g us (%s)",
                              8e-9 * network.bytes_per_second,
                              std::chrono::duration<double, std::micro>(network.latency).count(),
                              simulated_.origin.c_str()));
    console_.line("train: times, memory and traffic are those of such a rank; losses and weights mean nothing");
    console_.line("train: " + model_.decoder->config().model_type + " with " +
                  format_count(model_.root.num_parameters()) + " parameters in " +
                  std::to_string(model_.root.num_units()) + " units; " + plan::describe(plan_.setup));
    console_.line("train: " + describe(threads_) + describe(device_) + "; " +
                  with_thousands(rank_tokens() * world_.size) + " tokens per step, " + with_thousands(rank_tokens()) +
                  " of them rank 0's");
    console_.line("train: " + describe_plan(plan_));
    if (forecast_) console_.line("train: " + describe_forecast(*forecast_));
  }

  void take_step() {
    model_.root.reset_counters();
    const auto begin = Pace::Clock::now();
    trainer_.step();
    const double ms = 1e3 * seconds_since(begin);
    const Counters counters = model_.root.counters();
    steps_.push_back({ms, counters.exposed_gather_ms, counters.exposed_reduce_ms});
    console_.line(format_text("step %zu/%lld: %.2f ms; waited %.2f ms for gathers, %.2f for reductions, %.2f for data",
                              steps_.size(), static_cast<long long>(simulated_.steps), ms, counters.exposed_gather_ms,
                              counters.exposed_reduce_ms, prefetch_.take_wait_ms()));
  }

  void print_result() {
    const std::vector<double> ms = sorted_field(steps_, &MeasuredStep::ms);
    const double median = ms[ms.size() / 2];
    const auto middle = [&](auto field) {
      const std::vector<double> values = sorted_field(steps_, field);
      return values[values.size() / 2];
    };
    console_.line(
        format_text("train: a step takes %.2f ms [%.2f - %.2f], median of %zu after %lld that learn the order "
                    "of units; exposed: gathers %.2f ms, reductions %.2f ms",
                    median, ms.front(), ms.back(), ms.size(), static_cast<long long>(kLearningSteps),
                    middle(&MeasuredStep::exposed_gather_ms), middle(&MeasuredStep::exposed_reduce_ms)));
    if (forecast_) console_.line("train: " + compare_with_forecast(*forecast_, 1e-3 * median));
    const double rate = 1e3 * static_cast<double>(rank_tokens()) / median;
    console_.line("train: " + with_thousands(static_cast<int64_t>(rate)) + " tok/s of this rank, " +
                  with_thousands(static_cast<int64_t>(rate * world_.size)) + " of all");
    console_.line("train: " + compare_traffic(plan_, model_.root.counters()));
    console_.line("train: " + compare_with_plan(plan_, model_.root, trainer_.optimizer_bytes()));
    console_.line("train: peak memory: " + peak_text() + "; planned at most " + format_bytes(plan_.memory.total()));
    console_.line("train: nothing was written");
  }

  std::string peak_text() const {
    if (const auto memory = device_memory(device_)) return format_bytes(memory->peak_allocated) + " of the GPU";
    return format_bytes(process_memory().peak_bytes - memory_before_) + " beside the " + format_bytes(memory_before_) +
           " that the process had before the model";
  }

  int64_t rank_tokens() const { return config_.train.batch_sequences / world_.size * config_.data.sequence_length; }

  Config config_;
  SimulatedWorld simulated_;
  World world_;
  ThreadPlan threads_;
  c10::Device device_;
  Console console_;
  int64_t memory_before_;
  Splits splits_;
  plan::Report plan_;
  std::optional<plan::Forecast> forecast_;  // none on a GPU that no key names
  ShardedModel model_;
  PackedBatches batches_;
  Prefetch prefetch_;
  Trainer trainer_;
  std::vector<MeasuredStep> steps_;
};

}  // namespace

int run_simulated(Config config, const SimulatedWorld& simulated) {
  check_world(config, simulated);
  if (config.train.deterministic) compute_deterministically();
  const std::string left_out = keys_left_out(config);
  config = configuration_of(std::move(config), simulated.steps);
  const World world = comm::connect_fabric(static_cast<int>(simulated.ranks), simulated.network);
  Preparation prepared = prepare(config, world, set_threads(comm::connect_alone()));
  Console(Console::detect(stdout, 0))
      .line("train: a simulated world: nothing is saved, resumed, sampled or evaluated, and weights are random" +
            (left_out.empty() ? "" : "; left out: " + left_out));
  if (prepared.choice.config.experts.count > 0)
    refuse_world(
        "world: got model_type " + prepared.choice.config.model_type +
        ", expected a model without experts: how busy they are is known to all ranks together only. `fsdp plan` "
        "predicts such a run.");
  prepared.choice.weights.reset();
  SimulatedRun(config, simulated, world, std::move(prepared)).run();
  return 0;
}

}  // namespace fsdp::train
