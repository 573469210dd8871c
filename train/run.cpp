#include "train/run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/base/fault_point.h"
#include "fsdp/base/units.h"
#include "io/atomic_file.h"
#include "io/checkpoint_folder.h"
#include "train/agreement.h"
#include "train/checkpoints.h"
#include "train/config_file.h"
#include "train/console.h"
#include "train/evaluation.h"
#include "train/format.h"
#include "train/ledger.h"
#include "train/line_file.h"
#include "train/metrics.h"
#include "train/model_choice.h"
#include "train/output_folder.h"
#include "train/process_memory.h"
#include "train/replica_check.h"
#include "train/run_state.h"
#include "train/stop_signal.h"
#include "train/straggler_watch.h"
#include "train/threads.h"
#include "train/trainer.h"
#include "train/weights.h"

namespace fsdp::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kStoppedAndResumable = 75;  // EX_TEMPFAIL

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// The splits of the data set, opened.
struct Splits {
  PackedSplit train;
  std::optional<PackedSplit> heldout;
};

Splits open_splits(const DataConfig& config) {
  if (config.path.empty()) {
    throw Error(ErrorCode::kUsage,
                "[train] data.path is not set. Make a data set with `fsdp prepare`, and name its folder.");
  }
  Splits splits{PackedSplit(io::TokenDataset::open(config.path, config.train_split), config.sequence_length), {}};
  if (!config.heldout_split.empty()) {
    const auto manifest = io::read_dataset_manifest(config.path);
    if (manifest.splits.count(config.heldout_split) != 0) {
      splits.heldout.emplace(io::TokenDataset::open(config.path, config.heldout_split), config.sequence_length);
    }
  }
  return splits;
}

void verify_data(const Splits& splits, const std::string& choice) {
  constexpr int64_t kQuickTokens = int64_t{500} << 20;
  for (const PackedSplit* split : {&splits.train, splits.heldout ? &*splits.heldout : nullptr}) {
    if (split == nullptr || choice == "never") continue;
    if (choice == "always" || split->dataset().num_tokens() <= kQuickTokens) split->dataset().verify_hashes();
  }
}

// Ranks that were started with different settings, or that see different data, would wait for each other or train on
// something nobody asked for.
void check_ranks_agree(const World& world, const Config& config, const PackedSplit& data) {
  const auto contents = gather_strings(world, describe_content(config, data));
  const auto configs = gather_strings(world, config_to_toml(config));
  for (size_t rank = 1; rank < configs.size(); ++rank) {
    const std::string name = "[train] rank " + std::to_string(rank);
    if (contents[rank] != contents[0]) {
      throw AgreedError(ErrorCode::kData,
                        name + " has " + contents[rank] + ", rank 0 has " + contents[0] +
                            ". Give all ranks the same data.path with the same content.",
                        world.rank != 0);
    }
    if (configs[rank] != configs[0]) {
      throw AgreedError(ErrorCode::kUsage,
                        name + " was started with another configuration than rank 0. Start all alike.",
                        world.rank != 0);
    }
  }
}

ShardedModel build_model(const ModelChoice& choice, const Config& config, const World& world) {
  const bool load = choice.weights.has_value();
  // Deferred: block by block gets its values when it is sharded, and no rank ever holds the whole model.
  models::Decoder decoder = deferred([&] {
    models::Decoder whole(choice.config);
    load ? zero_parameters(*whole) : whole->reset_parameters(static_cast<uint64_t>(config.train.seed));
    return whole;
  });
  recompute_blocks(decoder, config.train.recompute_every);
  ShardedModel model =
      parallelize(std::move(decoder), make_mesh(world, config.shard.replicas), shard_options(config.shard));
  if (load) {
    on_all_ranks(world, [&] { load_weights(model, *choice.weights); });
  }
  return model;
}

// What the run is given before its model is built.
struct Prepared {
  ThreadPlan threads;
  Splits splits;
  ModelChoice choice;
  const StopSignal& stop_signal;
};

// The run as rank 0 tells about it, and the loop of all ranks.
class Run {
 public:
  Run(const Config& config, const World& world, Prepared prepared)
      : config_(config),
        world_(world),
        threads_(std::move(prepared.threads)),
        folder_{config.output.folder},
        console_(Console::detect(stdout, world.rank)),
        splits_(std::move(prepared.splits)),
        stop_signal_(prepared.stop_signal),
        model_(build_model(prepared.choice, config, world)),
        batches_(config.train, world, splits_.train),
        trainer_(config.train, world, batches_, model_, config.check),
        state_(config_,
               {identify_data(config, splits_.train), splits_.train.dataset().tokenizer(),
                models::to_hugging_face(model_.decoder->config()).dump()},
               trainer_, batches_),
        checkpoints_(config_, world_, folder_, console_, model_, trainer_, state_, [this] { sync_records(); }),
        stragglers_(world_, config.check.stragglers_every) {
    fault_point("model.built");
    on_rank0(world_, [&] {
      make_output(folder_);
      lock_.emplace(folder_.root);
      start_output(folder_, config_, check_output(folder_, config_));
      checkpoints_.check_room();
    });
  }

  // Returns the exit code.
  int train() {
    print_banner();
    const int64_t first_step = checkpoints_.resume();
    open_records(first_step);
    model_.root.reset_counters();
    begin_ = Clock::now();
    mark_ = begin_;
    marked_step_ = first_step;
    if (first_step > 0 && !evaluate_if_due()) return stop(agreed_signal());
    while (trainer_.steps_done() < trainer_.schedule().steps) {
      const StepResult result = take_step();
      if (result.outcome == StepResult::Outcome::kRollBack) {
        roll_back(result);
        if (!evaluate_if_due()) return stop(agreed_signal());
        continue;
      }
      const bool is_last = result.stop || trainer_.steps_done() >= trainer_.schedule().steps;
      report(result, is_last);
      if (result.signal != 0) return stop(result.signal);
      checkpoints_.after_step(result, is_last);
      if (is_last) break;
      if (!evaluate_if_due()) return stop(agreed_signal());
    }
    return end();
  }

 private:
  // False if a signal came in the meantime.
  bool evaluate_if_due() {
    const int64_t every = config_.train.eval_every;
    const int64_t step = trainer_.steps_done();
    const bool is_due = every > 0 && step % every == 0 && step < trainer_.schedule().steps;
    return !is_due || report_heldout(config_.train.eval_batches);
  }

  int end() {
    console_.line("train: " + std::to_string(trainer_.steps_done()) + " steps in " + clock_text(seconds_since(begin_)));
    if (!report_heldout(config_.train.final_eval_batches)) return stop(agreed_signal());
    checkpoints_.finish();
    save_model(model_, world_, folder_.model(), splits_.train.dataset().tokenizer());
    console_.line("train: wrote " + folder_.model().string() + ", " + folder_.metrics().string() + ", " +
                  folder_.config().string());
    checkpoints_.check_last_save();
    return 0;
  }

  // Of the lowest rank that got one.
  int agreed_signal() const {
    for (const std::string& text : gather_strings(world_, std::to_string(stop_signal_.received().value_or(0)))) {
      if (text != "0") return std::stoi(text);
    }
    return 0;
  }

  int stop(int signal) {
    checkpoints_.save_now();
    checkpoints_.check_last_save();
    console_.line("train: asked to stop by " + signal_name(signal) + "; saved step " +
                  std::to_string(trainer_.steps_done()) + "; start again with --resume=auto");
    return kStoppedAndResumable;
  }

  StepResult take_step() {
    const auto step_begin = Clock::now();
    const int64_t step = trainer_.steps_done();
    stragglers_.begin_step();
    const StepResult result = trainer_.step(
        {out_of_time(), checkpoints_.is_due_by_clock(), stop_signal_.received().value_or(0), checkpoints_.written()});
    stragglers_.end_step();
    step_seconds_.push_back(seconds_since(step_begin));
    fit_steps();
    for (const std::string& change : stragglers_.compare()) console_.line(change);
    if (result.outcome == StepResult::Outcome::kRollBack) return result;
    if (world_.rank == 0) {
      ledger_->append(to_json(LedgerEntry{step + 1, batches_.consumed(step), config_.train.batch_sequences,
                                          result.batch_hash, result.loss, result.grad_norm, result.lr,
                                          result.outcome == StepResult::Outcome::kSkipped}));
    }
    tell_irregularities(result);
    const int64_t every = config_.check.compare_replicas_every;
    if (every > 0 && trainer_.steps_done() % every == 0) compare_replicas(world_, model_, trainer_.steps_done());
    return result;
  }

  void tell_irregularities(const StepResult& result) {
    const std::string step = std::to_string(trainer_.steps_done());
    if (result.recomputed == StepResult::Recomputed::kTransient) {
      console_.line("train: step " + step +
                    " was computed wrongly once and then rightly: a passing error of a machine");
    }
    if (result.outcome == StepResult::Outcome::kSkipped) {
      console_.line(format_text("train: step %s skipped: loss %f, gradient norm %f, computed twice", step.c_str(),
                                result.loss, result.grad_norm));
    }
  }

  // Back to the last checkpoint, and on with the data after the step that went wrong.
  void roll_back(const StepResult& result) {
    const int64_t bad_step = trainer_.steps_done() + 1;
    const int64_t consumed = batches_.consumed(bad_step);
    num_rollbacks_ = bad_step > last_bad_step_ ? 1 : num_rollbacks_ + 1;
    last_bad_step_ = std::max(last_bad_step_, bad_step);
    checkpoints_.finish();
    constexpr int kMostRollbacks = 3;
    if (num_rollbacks_ > kMostRollbacks || !checkpoints_.go_back()) {
      throw AgreedError(
          ErrorCode::kNonFinite,
          format_text("[train] step %lld: loss %f, gradient norm %f: not finite, and %s. Lower train.lr, or "
                      "start from an older checkpoint.",
                      static_cast<long long>(bad_step), result.loss, result.grad_norm,
                      num_rollbacks_ > kMostRollbacks ? "going back did not help three times"
                                                      : "there is no checkpoint to go back to"),
          /*told_elsewhere=*/world_.rank != 0);
    }
    batches_.continue_at(trainer_.steps_done(), consumed);
    marked_step_ = std::min(marked_step_, trainer_.steps_done());
    on_rank0(world_, [&] {
      metrics_->go_back_to(trainer_.steps_done());
      ledger_->go_back_to(trainer_.steps_done());
    });
    console_.line(
        format_text("train: step %lld was not finite (loss %f); back to step %lld, without the data in between",
                    static_cast<long long>(bad_step), result.loss, static_cast<long long>(trainer_.steps_done())));
  }

  void open_records(int64_t first_step) {
    on_rank0(world_, [&] {
      metrics_ = std::make_unique<LineFile>(folder_.metrics(), first_step == 0 ? -1 : first_step);
      ledger_ = std::make_unique<LineFile>(folder_.ledger(), first_step == 0 ? -1 : first_step);
    });
  }

  void sync_records() {
    metrics_->sync();
    ledger_->sync();
  }

  int64_t tokens_per_step() const { return config_.train.batch_sequences * config_.data.sequence_length; }

  double mean_step_seconds() const {
    const auto window = static_cast<std::ptrdiff_t>(std::min<size_t>(20, step_seconds_.size()));
    double sum = 0;
    std::for_each(step_seconds_.end() - window, step_seconds_.end(), [&](double seconds) { sum += seconds; });
    return window > 0 ? sum / static_cast<double>(window) : 0;
  }

  bool out_of_time() const {
    const double limit = 60 * config_.train.max_minutes;
    return limit > 0 && seconds_since(begin_) + mean_step_seconds() >= limit;
  }

  // At the end of the warm-up, rank 0 knows how long a step takes.
  void fit_steps() {
    const TrainConfig& train = config_.train;
    if (train.fit_minutes == 0 || trainer_.steps_done() != train.warmup_steps) {
      return;
    }
    const std::ptrdiff_t first = step_seconds_.size() > 3 ? 3 : 0;  // the first ones find their memory
    std::vector<double> seconds(step_seconds_.begin() + first, step_seconds_.end());
    std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
    const double left = 60 * train.fit_minutes - seconds_since(begin_);
    const double fitting = std::max(0.0, left) / seconds[seconds.size() / 2];
    const auto wanted = train.warmup_steps + static_cast<int64_t>(std::min(fitting, 1e15));
    const int64_t steps = std::stoll(broadcast_string(world_, std::to_string(std::min(wanted, train.steps))));
    if (steps < trainer_.schedule().steps) {
      trainer_.set_num_steps(steps);
      config_.train.steps = steps;
      config_.train.fit_minutes = 0;  // the stored configuration repeats this run
      on_rank0(world_, [&] { io::write_file_atomically(folder_.config(), config_to_toml(config_)); });
      console_.line(
          format_text("train: %lld steps fit into the time asked for; "
                      "--train.steps=%lld --train.fit_minutes=0 repeats this run",
                      static_cast<long long>(steps), static_cast<long long>(steps)));
    }
  }

  std::string transport_text() const {
    const std::string name = transport_name(world_);
    if (name == "shm + gloo") return "ranks of a host share memory, hosts talk TCP (Gloo)";
    return name == "shm" ? "ranks share memory" : name == "gloo" ? "ranks talk TCP (Gloo)" : "no other ranks";
  }

  void print_banner() {
    const RestingBytes rest = model_.root.resting_bytes();
    const auto& data = splits_.train;
    console_.line("train: " + model_.decoder->config().model_type + " with " +
                  format_count(model_.root.num_parameters()) + " parameters in " +
                  std::to_string(model_.root.num_units()) + " units; " + std::to_string(world_.size) + " rank(s) (" +
                  launcher_name() + "); " + config_.shard.strategy + ", " + config_.shard.precision + ", " +
                  transport_text());
    console_.line("train: " + describe(threads_));
    console_.line("train: " + with_thousands(data.dataset().num_tokens()) + " tokens in " +
                  with_thousands(data.num_sequences()) + " sequences, " + with_thousands(tokens_per_step()) +
                  " tokens per step; held out: " +
                  (splits_.heldout ? with_thousands(splits_.heldout->dataset().num_tokens()) + " tokens" : "nothing"));
    console_.line("train: at rest each rank holds weights " + format_bytes(rest.main_weight + rest.model_weight) +
                  ", gradients " + format_bytes(rest.main_weight) + ", optimizer " +
                  format_bytes(2 * rest.main_weight));
  }

  void report(const StepResult& result, bool done) {
    const int64_t step = trainer_.steps_done();
    const bool logged = done || step == 1 || step % config_.train.log_every == 0;
    if (world_.rank != 0 || (!logged && !console_.updates_in_place())) {
      return;
    }
    const StepMetrics metrics = collect(result);
    if (logged) {
      metrics_->append(to_json(metrics));
      model_.root.reset_counters();
      mark_ = Clock::now();
      marked_step_ = step;
    }
    console_.status(progress_line(metrics));
  }

  StepMetrics collect(const StepResult& result) const {
    const int64_t step = trainer_.steps_done();
    const auto since = static_cast<double>(step - marked_step_);
    const ProcessMemory process = process_memory();
    const RestingBytes rest = model_.root.resting_bytes();
    const Counters counters = model_.root.counters();
    StepMetrics metrics;
    metrics.step = step;
    metrics.steps = trainer_.schedule().steps;
    metrics.tokens = step * tokens_per_step();
    metrics.loss = result.loss;
    metrics.grad_norm = result.grad_norm;
    metrics.lr = result.lr;
    metrics.step_ms = 1e3 * seconds_since(mark_) / since;
    metrics.tokens_per_s = since * static_cast<double>(tokens_per_step()) / seconds_since(mark_);
    metrics.num_ranks = world_.size;
    metrics.eta_s = remaining_seconds();
    metrics.memory = {
        process.resident_bytes, process.peak_bytes,         rest.main_weight + rest.model_weight,
        rest.main_grad,         trainer_.optimizer_bytes(), counters.peak_unsharded_bytes + counters.peak_reduce_bytes};
    metrics.comm = {counters.gathers, counters.reduces, counters.gather_bytes + counters.reduce_bytes,
                    counters.exposed_gather_ms + counters.exposed_reduce_ms};
    return metrics;
  }

  double remaining_seconds() const {
    const auto steps = static_cast<double>(trainer_.schedule().steps - trainer_.steps_done());
    const double by_steps = steps * mean_step_seconds();
    const double limit = 60 * config_.train.max_minutes;
    return limit > 0 ? std::min(by_steps, std::max(0.0, limit - seconds_since(begin_))) : by_steps;
  }

  // COLLECTIVE. False if a signal came in the meantime: then nothing is reported.
  bool report_heldout(int64_t num_batches) {
    if (!splits_.heldout) return true;
    fault_point("eval.begin");
    const auto eval_begin = Clock::now();
    const auto evaluated = evaluate(model_, world_, *splits_.heldout, config_.train.batch_sequences, num_batches,
                                    [&] { return stop_signal_.received().has_value(); });
    if (!evaluated) return false;
    const HeldoutLoss& loss = *evaluated;
    fault_point("eval.end");
    mark_ += Clock::now() - eval_begin;  // not part of the training speed
    if (world_.rank == 0) {
      metrics_->append(to_json(trainer_.steps_done(), loss));
    }
    console_.line(format_text("train: held out after step %lld: %.4f nats per byte, %.4f bits per byte (%s bytes)",
                              static_cast<long long>(trainer_.steps_done()), loss.nats_per_byte(), loss.bits_per_byte(),
                              with_thousands(loss.bytes).c_str()));
    return true;
  }

  Config config_;
  World world_;
  ThreadPlan threads_;
  OutputFolder folder_;
  Console console_;
  Splits splits_;
  const StopSignal& stop_signal_;
  ShardedModel model_;
  PackedBatches batches_;
  Trainer trainer_;
  RunState state_;
  Checkpoints checkpoints_;
  StragglerWatch stragglers_;
  std::optional<io::FolderLock> lock_;  // rank 0
  std::unique_ptr<LineFile> metrics_;   // rank 0
  std::unique_ptr<LineFile> ledger_;    // rank 0
  Clock::time_point begin_;             // of the first step
  Clock::time_point mark_;              // of the last logged step, moved by what is not training
  int64_t marked_step_ = 0;
  std::vector<double> step_seconds_;
  int64_t last_bad_step_ = 0;
  int num_rollbacks_ = 0;  // in a row, without a good step after last_bad_step_
};

}  // namespace

int run_training(const Config& config, const World& world) {
  const StopSignal stop_signal;
  const ThreadPlan threads = set_threads(world);
  std::optional<Splits> splits;
  std::optional<ModelChoice> choice;
  on_all_ranks(world, [&] {
    splits = open_splits(config.data);
    const io::TokenDataset& data = splits->train.dataset();
    check_batch(config.train, world, splits->train);
    choice = choose_model(config.model, data.vocab_size(), data.eos_id());
    verify_data(*splits, config.check.data);
  });
  on_rank0(world, [&] {
    check_output({config.output.folder}, config);
    if (!config.model.preset.empty())
      Console(Console::detect(stdout, 0)).line("train: " + config.model.preset + ": " + size_text(choice->config));
  });
  check_ranks_agree(world, config, splits->train);
  Run run(config, world, {threads, std::move(*splits), std::move(*choice), stop_signal});
  return run.train();
}

}  // namespace fsdp::train
