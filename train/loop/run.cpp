#include "train/loop/run.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include "fsdp/base/fault_point.h"
#include "fsdp/base/units.h"
#include "kernels/base/cpu_isa.h"
#include "train/axes/decoder_pipeline.h"
#include "train/base/agreement.h"
#include "train/base/console.h"
#include "train/base/determinism.h"
#include "train/base/device.h"
#include "train/base/format.h"
#include "train/base/matmul_peak.h"
#include "train/base/metrics.h"
#include "train/base/process_memory.h"
#include "train/base/threads.h"
#include "train/config/output_folder.h"
#include "train/data/data_splits.h"
#include "train/data/data_tokenizer.h"
#include "train/data/prefetch.h"
#include "train/evaluate/evaluation.h"
#include "train/generate/samples.h"
#include "train/loop/checkpoints.h"
#include "train/loop/event_log.h"
#include "train/loop/ledger.h"
#include "train/loop/pace.h"
#include "train/loop/plan_of_run.h"
#include "train/loop/preparation.h"
#include "train/loop/rank_check.h"
#include "train/loop/records.h"
#include "train/loop/run_state.h"
#include "train/loop/straggler_watch.h"
#include "train/loop/trainer.h"
#include "train/model/build_model.h"
#include "train/model/graphed_blocks.h"
#include "train/model/lora_files.h"
#include "train/model/model_choice.h"
#include "train/model/replica_check.h"
#include "train/model/tuning.h"
#include "train/model/weights.h"
#include "train/profile/step_profile.h"

namespace fsdp::train {
namespace {

using Clock = Pace::Clock;

constexpr int kStoppedAndResumable = 75;  // EX_TEMPFAIL

// The run as rank 0 tells about it, and the loop of all ranks.
class Run {
 public:
  Run(const Config& config, const World& world, Preparation prepared, StopSignal& stop_signal)
      : config_(config),
        world_(world),
        threads_(std::move(prepared.threads)),
        device_(prepared.device),
        folder_{config.output.folder},
        console_(Console::detect(stdout, world.rank)),
        splits_(std::move(prepared.splits)),
        stop_signal_(stop_signal),
        tokenizer_(std::move(prepared.tokenizer)),
        writer_(config.sample, config.train.seed, tokenizer_),
        peak_flops_(peak_of_a_rank(world, config.train.peak_tflops, multiplied_type(config.shard), device_)),
        tuning_(std::move(prepared.tuning)),
        plan_(plan_run(config, prepared.choice, world)),
        model_(build_model(prepared.choice, tuning_, config, world, device_)),
        flops_per_token_(trained_flops_per_token(model_, config.data.sequence_length)),
        batches_(config, model_.place, splits_.train),
        prefetch_(batches_),
        trainer_(resolve_tokens(config), world, prefetch_, model_, config.check, config.optimizer),
        state_(config_,
               {identify_data(config, splits_.train), splits_.train.dataset().tokenizer(),
                models::to_hugging_face(model_.decoder->config()).dump(),
                tuning_.lora ? adapter_config_text(tuning_, config.model.path) : "",
                needs_its_base(config, tuning_) ? identify_base(tuning_, *prepared.choice.weights) : ""},
               trainer_, batches_),
        checkpoints_(config_, world_, folder_, console_, events_, model_, trainer_, state_,
                     [this] { records_->sync(); }),
        stragglers_(world_, config.check.stragglers_every),
        profile_(world_, parse_profiled_steps(config.train.profile_steps)) {
    fault_point("model.built");
    on_rank0(world_, [&] {
      forecast_ = forecast_run(config_, prepared.choice, plan_);
      output_ = take_output(folder_, config_);
      checkpoints_.check_room();
    });
    if (config.tune.loss == "dpo") {  // before weights come from a checkpoint
      const auto tell = [this](const std::string& line) { console_.line("train: " + line); };
      trainer_.prefer(make_objective(config_, world_, model_, splits_, prepared.choice, tell));
    }
    checkpoints_.read_of_other_run();
    // Nothing of an earlier run goes before what this one begins with is there.
    on_rank0(world_, [&] {
      start_output(folder_, config_, output_->use);
      events_.open(folder_.events());
    });
  }

  // Returns the exit code.
  int train() {
    try {
      return train_steps();
    } catch (const std::exception& failure) {
      events_.keep(EventKind::kFailed, trainer_.steps_done(), failure.what());
      throw;
    }
  }

 private:
  static constexpr const char* kStopFile = "the file STOP";

  int train_steps() {
    print_banner();
    const int64_t first_step = checkpoints_.resume();
    if (state_.has_fitted_steps()) keep_steps();
    on_rank0(world_, [&] { records_ = std::make_unique<Records>(folder_, config_, first_step); });
    model_.root.reset_counters();
    events_.keep_start({first_step, trainer_.schedule().steps, world_.size, num_parameters(model_), subject()});
    pace_.start(first_step);
    if (!rest()) return stop(agreed_reason());
    while (trainer_.steps_done() < trainer_.schedule().steps) {
      const StepResult result = take_step();
      if (result.outcome == StepResult::Outcome::kRollBack) {
        if (!rest()) return stop(agreed_reason());
        continue;
      }
      const bool is_last = result.stop || trainer_.steps_done() >= trainer_.schedule().steps;
      report(result, is_last);
      if (result.signal != 0 || result.stop_file) {
        return stop(result.signal != 0 ? signal_name(result.signal) : kStopFile);
      }
      checkpoints_.after_step(result, is_last);
      if (is_last) break;
      if (!rest()) return stop(agreed_reason());
    }
    return end();
  }

  // Between two steps: samples and evaluations that are due. False if somebody asks for a stop in the meantime.
  bool rest() {
    const int64_t every = config_.train.eval_every;
    const int64_t step = trainer_.steps_done();
    if (step == 0 || step >= trainer_.schedule().steps) return true;  // end() does the last ones
    write_samples();
    return every == 0 || step % every != 0 || report_heldout(config_.train.eval_batches);
  }

  int end() {
    console_.line("train: " + std::to_string(trainer_.steps_done()) + " steps in " + clock_text(pace_.elapsed()));
    if (pace_.mean_step_seconds() > 0) {
      console_.line("train: " + compare_with_plan(plan_, model_.root, trainer_.optimizer_bytes()));
      if (model_.pipeline)
        console_.line("train: " + compare_all_ranks(plan_, model_.root, trainer_.optimizer_bytes(), world_));
    }
    if (forecast_ && batches_.is_flat()) console_.line("train: " + forecast_->compare(pace_.median_step_seconds()));
    write_samples();
    if (!report_heldout(config_.train.final_eval_batches)) return stop(agreed_reason());
    checkpoints_.finish();
    save_result();
    console_.line("train: wrote " + folder_.model().string() + ", " +
                  (trainer_.ema() == nullptr ? "" : folder_.averaged_model().string() + ", ") +
                  folder_.metrics().string() + ", " + folder_.config().string());
    checkpoints_.check_last_save();
    events_.keep(EventKind::kEnded, trainer_.steps_done(), "");
    return 0;
  }

  // Local. Is there a file STOP? Rank 0 looks for all.
  bool stop_file_is_there() const {
    std::error_code ignored;
    return world_.rank == 0 && std::filesystem::exists(folder_.stop_request(), ignored);
  }

  void save_result() {
    trainer_.with_given_weights([&] { save_weights(folder_.model()); });
    if (trainer_.ema() != nullptr) trainer_.with_averages([&] { save_weights(folder_.averaged_model()); });
  }

  void save_weights(const std::filesystem::path& folder) {
    if (tuning_.lora) {
      save_adapter(model_, world_, folder, *tuning_.lora, config_.model.path);
    } else {
      const io::TokenDataset& data = splits_.train.dataset();
      save_model(model_, world_, folder, data.tokenizer(), tokenizer_folder(data));
    }
  }

  // Who asks for a stop: the lowest rank's signal, else the file. COLLECTIVE.
  std::string agreed_reason() const {
    const int signal = lowest_ranks_signal(world_, stop_signal_.received().value_or(0));
    return signal != 0 ? signal_name(signal) : kStopFile;
  }

  int stop(const std::string& reason) {
    checkpoints_.save_now();
    checkpoints_.check_last_save();
    // A request is used up by being obeyed: the run that goes on shall not find it again.
    std::error_code ignored;
    if (stop_file_is_there()) std::filesystem::remove(folder_.stop_request(), ignored);
    events_.tell(EventKind::kStopped, trainer_.steps_done(),
                 "train: asked to stop by " + reason + "; saved step " + std::to_string(trainer_.steps_done()) +
                     "; start again with --resume=auto");
    return kStoppedAndResumable;
  }

  bool is_logged(int64_t step) const { return step == 1 || step % config_.train.log_every == 0; }

  RankNews news() const {
    const bool looks = world_.rank == 0 && is_logged(trainer_.steps_done() + 1);
    return {.wants_stop = out_of_time(),
            .wants_save = checkpoints_.is_due_by_clock() || (looks && checkpoints_.is_asked_for()),
            .signal = stop_signal_.received().value_or(0),
            .save_written = checkpoints_.written(),
            .stop_file = looks && stop_file_is_there()};
  }

  StepResult take_step() {
    const auto step_begin = Clock::now();
    const int64_t step = trainer_.steps_done();
    stragglers_.begin_step();
    profile_.begin_step(step + 1);
    StepResult result = trainer_.step(news());
    if (profile_.end_step(step + 1)) {
      profile_.write(folder_.trace());
      console_.line("train: wrote " + folder_.trace().string() + "; `fsdp trace` draws it");
    }
    stragglers_.end_step();
    pace_.add_step(seconds_since(step_begin), 1e-3 * prefetch_.take_wait_ms());
    if (forecast_) forecast_->note_step(result.busiest_experts);
    fit_steps();
    for (const std::string& change : stragglers_.compare()) events_.tell(EventKind::kSlowRank, step + 1, change);
    if (result.outcome == StepResult::Outcome::kRollBack) {
      if (roll_back(result)) return result;
      trainer_.skip(result);
      result.outcome = StepResult::Outcome::kSkipped;
    }
    if (world_.rank == 0) {
      records_->ledger.append(to_json(LedgerEntry{step + 1, batches_.consumed(step), batches_.num_sequences(step),
                                                  result.batch_hash, result.loss, result.grad_norm, result.lr,
                                                  result.outcome == StepResult::Outcome::kSkipped, result.loss_scale}));
    }
    tell_irregularities(result);
    const int64_t every = config_.check.compare_replicas_every;
    if (every > 0 && trainer_.steps_done() % every == 0) compare_replicas(world_, model_, trainer_.steps_done());
    return result;
  }

  void tell_irregularities(const StepResult& result) {
    const int64_t done = trainer_.steps_done();
    const std::string step = "train: step " + std::to_string(done) + " ";
    if (result.recomputed == StepResult::Recomputed::kTransient) {
      events_.tell(EventKind::kPassingError, done,
                   step + "was computed wrongly once and then rightly: a passing error of a machine");
    }
    if (result.overflowed) ++num_overflows_;
    const bool skipped = result.outcome == StepResult::Outcome::kSkipped;
    const std::string text = describe_trouble(result, trainer_.scaler());
    if (!text.empty()) events_.tell(skipped ? EventKind::kSkipped : EventKind::kSpike, done, step + text);
  }

  // Back to the last checkpoint, and on with the data after the step that went wrong. False if a spike is all that is
  // wrong and there is no way back, or going back has not helped: then it is better to go on.
  bool roll_back(const StepResult& result) {
    const int64_t bad_step = trainer_.steps_done() + 1;
    const int64_t consumed = batches_.consumed(bad_step);
    num_rollbacks_ = bad_step > last_bad_step_ ? 1 : num_rollbacks_ + 1;
    last_bad_step_ = std::max(last_bad_step_, bad_step);
    checkpoints_.finish();
    constexpr int kMostRollbacks = 3;
    if (num_rollbacks_ > kMostRollbacks || !checkpoints_.go_back()) {
      if (result.spike) return false;
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
    pace_.go_back_to(trainer_.steps_done());
    on_rank0(world_, [&] { records_->go_back_to(trainer_.steps_done()); });
    events_.tell(EventKind::kRolledBack, bad_step,
                 format_text("train: step %lld was %s (loss %f); back to step %lld, without the data in between",
                             static_cast<long long>(bad_step), result.spike ? "a spike" : "not finite", result.loss,
                             static_cast<long long>(trainer_.steps_done())));
    return true;
  }

  bool out_of_time() const {
    const double limit = 60 * config_.train.max_minutes;
    return limit > 0 && pace_.elapsed() + pace_.mean_step_seconds() >= limit;
  }

  // At the end of the warm-up, rank 0 knows how long a step takes.
  void fit_steps() {
    const LrSchedule& schedule = trainer_.schedule();
    if (config_.train.fit_minutes == 0 || trainer_.steps_done() != schedule.warmup_steps) return;
    const int64_t wanted = schedule.warmup_steps + pace_.steps_until(60 * config_.train.fit_minutes);
    const int64_t steps = std::stoll(broadcast_string(world_, std::to_string(std::min(wanted, schedule.steps))));
    if (steps >= schedule.steps) return;
    trainer_.set_num_steps(steps);
    keep_steps();
    console_.line(
        format_text("train: %lld steps fit into the time asked for; "
                    "--train.steps=%lld --train.fit_minutes=0 repeats this run",
                    static_cast<long long>(steps), static_cast<long long>(steps)));
  }

  // The stored configuration repeats this run: it has the steps that were chosen, and no clock. COLLECTIVE.
  void keep_steps() {
    config_.train = with_fitted_steps(config_.train, trainer_.schedule().steps);
    on_rank0(world_, [&] { store_config(folder_, config_); });
  }

  // What is trained, by how many, and how.
  std::string subject() const {
    return model_.decoder->config().model_type + " with " + format_count(num_parameters(model_)) + " parameters in " +
           std::to_string(model_.root.num_units()) + " units; " + describe_ranks(world_, model_.place) + "; " +
           config_.shard.strategy + ", " + config_.shard.precision + ", " + describe_transport(world_);
  }

  void print_banner() {
    const RestingBytes rest = model_.root.resting_bytes();
    console_.line("train: " + subject());
    console_.line("train: " + describe(threads_) + describe(device_) + "; " + kernels::describe_cpu_isa() +
                  format_text("; %.3g TFLOP/s each", 1e-12 * peak_flops_) +
                  (config_.train.deterministic ? "; deterministic" : ""));
    console_.line("train: " + describe(trainer_.schedule()));
    console_.line("train: " + with_thousands(tokens_per_step(config_)) + " tokens per step of " +
                  describe_splits(splits_));
    if (model_.pipeline) console_.line("train: pipeline of " + model_.pipeline->describe(batches_.num_microbatches(0)));
    if (const std::string text = describe(tuning_, model_); !text.empty()) console_.line("train: " + text);
    const int64_t trained = trainable_size(model_).local_bytes;
    console_.line("train: at rest each rank holds weights " + format_bytes(rest.main_weight + rest.model_weight) +
                  ", gradients " + format_bytes(trained) + planned_optimizer(plan_));
    console_.line("train: " + describe_plan(plan_));
    if (forecast_) console_.line("train: " + describe_forecast(forecast_->planned()));
  }

  void report(const StepResult& result, bool done) {
    const int64_t step = trainer_.steps_done();
    const bool logged = done || is_logged(step);
    if (world_.rank != 0 || (!logged && !console_.updates_in_place())) return;
    const StepMetrics metrics = collect(result);
    if (logged) {
      records_->metrics.append(to_json(metrics));
      model_.root.reset_counters();
      pace_.mark(step);
    }
    console_.status(progress_line(metrics), live_line(metrics));
  }

  double utilisation(double tokens_per_s) {
    const double reached = tokens_per_s * flops_per_token_ / world_.size;
    if (reached > peak_flops_) {
      console_.line(format_text("train: a step reached %.3g TFLOP/s each, above the %.3g of products: mfu's new peak",
                                1e-12 * reached, 1e-12 * peak_flops_));
      peak_flops_ = reached;
    }
    return reached / peak_flops_;
  }

  StepMetrics collect(const StepResult& result) {
    const int64_t step = trainer_.steps_done();
    const Pace::Window window = pace_.since_mark(step);
    const ProcessMemory process = process_memory();
    const RestingBytes rest = model_.root.resting_bytes();
    const Counters counters = model_.root.counters();
    StepMetrics metrics;
    metrics.step = step;
    metrics.steps = trainer_.schedule().steps;
    metrics.tokens = batches_.tokens_before(step);
    metrics.loss = result.loss;
    metrics.grad_norm = result.grad_norm;
    metrics.lr = result.lr;
    metrics.preference = result.preference;
    if (result.loss_scale > 0) metrics.scaling = {result.loss_scale, num_overflows_};
    if (result.fullest_expert > 0) metrics.experts = {result.fullest_expert, result.busiest_experts};
    metrics.step_ms = 1e3 * window.seconds / window.steps;
    metrics.data_ms = 1e3 * window.data_seconds / window.steps;
    const int64_t tokens = metrics.tokens - batches_.tokens_before(step - static_cast<int64_t>(window.steps));
    metrics.tokens_per_s = static_cast<double>(tokens) / window.seconds;
    metrics.mfu = utilisation(metrics.tokens_per_s);
    metrics.num_ranks = world_.size;
    metrics.eta_s = remaining_seconds();
    metrics.slowest = stragglers_.slowest();
    metrics.memory = {
        process.resident_bytes, process.peak_bytes,         rest.main_weight + rest.model_weight,
        rest.main_grad,         trainer_.optimizer_bytes(), counters.peak_unsharded_bytes + counters.peak_reduce_bytes};
    metrics.device = device_memory(device_);
    metrics.comm = {counters.gathers, counters.reduces, counters.gather_bytes + counters.reduce_bytes,
                    counters.exposed_gather_ms + counters.exposed_reduce_ms};
    return metrics;
  }

  double remaining_seconds() const {
    const double by_steps = pace_.seconds_for(trainer_.steps_done(), trainer_.schedule().steps,
                                              [&](int64_t step) { return batches_.tokens_before(step); });
    const double limit = 60 * config_.train.max_minutes;
    return limit > 0 ? std::min(by_steps, std::max(0.0, limit - pace_.elapsed())) : by_steps;
  }

  // COLLECTIVE.
  void write_samples() {
    const int64_t step = trainer_.steps_done();
    if (!writer_.is_due(step)) return;
    const auto begin = Clock::now();
    trainer_.with_given_weights([&] {
      for (const Sample& sample : writer_.write(model_)) {
        if (world_.rank == 0) records_->samples->append(to_json(step, sample));
        console_.line("sample: after step " + std::to_string(step) + ": " + printable(sample.prompt + sample.text));
      }
    });
    pace_.pause(Clock::now() - begin);
  }

  // COLLECTIVE. False if somebody asked for a stop in the meantime: then nothing is reported.
  bool report_heldout(int64_t num_batches) {
    if (!splits_.heldout) return true;
    fault_point("eval.begin");
    const auto begin = Clock::now();
    const auto is_asked = [&] { return stop_signal_.received().has_value() || stop_file_is_there(); };
    std::optional<HeldoutLoss> loss;
    const auto evaluate_now = [&] {
      loss = evaluate(model_, world_, *splits_.heldout, config_.train, num_batches, is_asked,
                      tokenizer_ ? &*tokenizer_ : nullptr, trainer_.objective());
    };
    const std::string weights = trainer_.gives_average() ? "average" : config_.train.eval_weights;
    weights == "ema" ? trainer_.with_averages(evaluate_now) : trainer_.with_given_weights(evaluate_now);
    if (!loss) return false;
    fault_point("eval.end");
    pace_.pause(Clock::now() - begin);
    const int64_t step = trainer_.steps_done();
    if (world_.rank == 0) records_->metrics.append(to_json(step, *loss, weights));
    const std::string whose = weights == "trained" ? ": " : ", averaged weights: ";
    console_.line("train: held out after step " + std::to_string(step) + whose + describe(*loss));
    return true;
  }

  Config config_;
  World world_;
  ThreadPlan threads_;
  c10::Device device_;
  OutputFolder folder_;
  Console console_;
  EventLog events_{console_};
  Splits splits_;
  StopSignal& stop_signal_;
  std::optional<tokenizer::Tokenizer> tokenizer_;
  SampleWriter writer_;
  double peak_flops_;  // of one rank; at least what a step has reached
  Tuning tuning_;
  plan::Report plan_;                    // of this rank
  std::optional<RunForecast> forecast_;  // of rank 0
  ShardedModel model_;
  double flops_per_token_;
  PackedBatches batches_;
  Prefetch prefetch_;
  Trainer trainer_;
  RunState state_;
  Checkpoints checkpoints_;
  StragglerWatch stragglers_;
  StepProfile profile_;
  Pace pace_;
  std::optional<TakenOutput> output_;  // rank 0
  std::unique_ptr<Records> records_;   // rank 0
  int64_t last_bad_step_ = 0;
  int64_t num_overflows_ = 0;  // steps skipped because gradients did not fit into fp16, since this process began
  int num_rollbacks_ = 0;      // in a row, without a good step after last_bad_step_
};

}  // namespace

int run_training(const Config& config, const World& world, StopSignal& stop_signal, RunKind kind) {
  stop_signal.answer_with(world.size == 1 ? StopSignal::Answer::kNoteAndTell : StopSignal::Answer::kNote);
  if (config.train.deterministic) compute_deterministically();
  Preparation prepared = prepare(config, world, set_threads(world));
  on_rank0(world, [&] {
    check_output({config.output.folder}, config);
    if (!config.model.preset.empty())
      Console(Console::detect(stdout, 0))
          .line("train: " + config.model.preset + ": " + size_text(prepared.choice.config));
  });
  check_ranks_agree(world, config, prepared.splits.train);
  if (kind == RunKind::kDry) {
    on_rank0(world, [&] { std::fputs(dry_run_text(config, prepared.choice, world).c_str(), stdout); });
    return 0;
  }
  return Run(config, world, std::move(prepared), stop_signal).train();
}

}  // namespace fsdp::train
