#include "train/loop/checkpoints.h"

#include <cstdio>
#include <system_error>

#include "fsdp/base/units.h"
#include "io/base/file_ops.h"
#include "io/checkpoint/checkpoint_folder.h"
#include "io/weights/adapter.h"
#include "train/base/agreement.h"
#include "train/base/format.h"
#include "train/model/tuning.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

checkpoint::SaverOptions saver_options(const CheckpointConfig& config) {
  checkpoint::SaverOptions options;
  options.keep_last = config.keep_last;
  options.keep_every = config.keep_every;
  options.writing =
      config.async ? checkpoint::SaverOptions::Writing::kBehind : checkpoint::SaverOptions::Writing::kBlocking;
  options.threads = static_cast<int>(config.threads);
  return options;
}

// A run that goes on from step N writes the steps after it anew. What is there of them, damaged or of a run that was
// given up, must neither be resumed from nor count as the newest; it is kept under another name.
std::string set_aside_after(int64_t step, const fs::path& root) {
  std::string names;
  for (const io::CheckpointPlace& place : io::list_checkpoints(root)) {
    if (place.step <= step) continue;
    const fs::path aside = place.path.string() + ".aside";
    io::system_files().remove_all(aside);
    io::system_files().rename(place.path, aside);
    names += (names.empty() ? "" : ", ") + aside.filename().string();
  }
  if (!names.empty()) io::system_files().sync_folder(root);
  return names;
}

bool saves_regularly(const CheckpointConfig& config) { return config.every_steps > 0 || config.every_minutes > 0; }

}  // namespace

Checkpoints::Checkpoints(const Config& config, const World& world, const OutputFolder& folder, Console& console,
                         EventLog& events, ShardedModel& model, Trainer& trainer, RunState& run,
                         std::function<void()> before_commit)
    : config_(config),
      world_(world),
      folder_(folder),
      console_(console),
      events_(events),
      model_(model),
      trainer_(trainer),
      run_(run),
      before_commit_(std::move(before_commit)),
      saver_(world, folder.checkpoints(), saver_options(config.checkpoint)),
      last_start_(Clock::now()) {}

checkpoint::State Checkpoints::state() {
  checkpoint::State state{*model_.decoder, trainer_.optimizer()};
  state.scaler = trainer_.scaler();
  state.ema = trainer_.ema();
  state.others["run"] = &run_;
  if (config_.checkpoint.content == "adapter") state.keeps = io::is_adapter_name;
  return state;
}

void Checkpoints::check_room() const {
  if (!saves_regularly(config_.checkpoint)) return;
  const int64_t trained = trainable_size(model_).parameters * static_cast<int64_t>(sizeof(float));
  const int64_t weights = config_.checkpoint.content == "adapter" ? trained : weight_bytes(model_);
  const int64_t states = config_.train.ema > 0 ? 3 : 2;
  const auto one = static_cast<uint64_t>(weights + states * trained);
  const size_t there = io::list_checkpoints(folder_.checkpoints()).size();
  const uint64_t wanted = one * (there >= 1 ? 1 : 2);
  const uint64_t free = io::free_bytes(folder_.root);
  if (free >= wanted) return;
  throw Error(ErrorCode::kFileSystem,
              "[checkpoint] " + folder_.root.string() + ": got " + format_bytes(static_cast<int64_t>(free)) +
                  " of free space, expected " + format_bytes(static_cast<int64_t>(wanted)) + " for " +
                  (there >= 1 ? "one more checkpoint" : "two checkpoints") +
                  ". Free some, choose another output.folder, or set checkpoint.every_steps=0.");
}

void Checkpoints::tell_resumed(const std::string& place, const checkpoint::LoadReport& report) {
  saved_step_ = report.step;
  events_.tell(
      EventKind::kResumed, report.step,
      format_text("checkpoint: resumed from %s at step %lld (written by %lld rank(s)); %s read in %.2f s",
                  place.c_str(), static_cast<long long>(report.step), static_cast<long long>(report.world_size),
                  format_bytes(report.bytes).c_str(), report.seconds));
  for (const std::string& change : run_.changed_keys()) console_.line("checkpoint: " + change);
  on_rank0(world_, [&] {
    const std::string names = set_aside_after(report.step, folder_.checkpoints());
    if (!names.empty()) console_.line("checkpoint: set aside what was saved later: " + names);
  });
}

void Checkpoints::read_of_other_run() {
  const std::string& choice = config_.checkpoint.resume;
  if (choice != "never" && choice != "auto") of_other_run_ = checkpoint::load(choice, state());
}

int64_t Checkpoints::resume() {
  if (config_.checkpoint.resume == "never") return 0;
  if (config_.checkpoint.resume == "auto") return go_back() ? trainer_.steps_done() : 0;
  tell_resumed(config_.checkpoint.resume, *of_other_run_);
  return trainer_.steps_done();
}

bool Checkpoints::go_back() {
  const auto tell = [&](const fs::path& place, const std::string& reason) {
    const std::string line = "checkpoint: passed over " + place.filename().string() + ": " + reason;
    console_.line(line);
    std::fprintf(stderr, "%s\n", line.c_str());
  };
  const auto report = checkpoint::resume(folder_.checkpoints(), state(), tell);
  if (report) tell_resumed(folder_.checkpoints() / ("step-" + std::to_string(report->step)), *report);
  return report.has_value();
}

bool Checkpoints::is_due_by_clock() const {
  const double minutes = config_.checkpoint.every_minutes;
  return minutes > 0 && std::chrono::duration<double>(Clock::now() - last_start_).count() >= 60 * minutes;
}

bool Checkpoints::is_asked_for() const {
  std::error_code ignored;
  const bool is_answered = saver_.in_flight() && answers_request_;
  return !is_answered && fs::exists(folder_.save_request(), ignored);
}

bool Checkpoints::is_due(const StepResult& result, bool is_last) const {
  const int64_t every = config_.checkpoint.every_steps;
  return result.save || (every > 0 && trainer_.steps_done() % every == 0) ||
         (is_last && saves_regularly(config_.checkpoint));
}

void Checkpoints::after_step(const StepResult& result, bool is_last) {
  if (saver_.in_flight() && result.saves_written) finish();
  if (!is_due(result, is_last)) return;
  if (is_last) {
    save_now();
  } else {
    finish();
    start();
  }
}

// A full disk is no reason to lose the run: the next save may find room.
void Checkpoints::attempt(const std::function<void()>& save) {
  try {
    save();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kFileSystem) throw;
    last_failure_ = error.what();
    events_.tell(EventKind::kSaveFailed, trainer_.steps_done(),
                 "checkpoint: save failed: " + last_failure_ +
                     (saved_step_ ? "; that of step " + std::to_string(*saved_step_) + " stays" : "") +
                     "; training goes on");
  }
}

void Checkpoints::start() {
  last_start_ = Clock::now();
  answers_request_ = world_.rank == 0 && is_asked_for();  // before the save, which is not in flight yet
  attempt([&] { saver_.start(trainer_.steps_done(), state()); });
  if (!config_.checkpoint.async) finish();
}

void Checkpoints::finish() {
  if (!saver_.in_flight()) return;
  attempt([&] { on_rank0(world_, before_commit_); });
  attempt([&] {
    const checkpoint::SaveReport report = saver_.finish();
    saved_step_ = report.step;
    last_failure_.clear();
    events_.tell(EventKind::kCommitted, report.step,
                 format_text("checkpoint: committed step %lld (%s) in %.3f s, training stalled %.3f s",
                             static_cast<long long>(report.step), format_bytes(report.bytes).c_str(), report.seconds,
                             report.stalled_seconds));
    std::error_code ignored;  // it would only be obeyed again
    if (answers_request_ && fs::remove(folder_.save_request(), ignored))
      console_.line("checkpoint: removed the file SAVE");
    if (!report.cleanup_failure.empty()) console_.line("checkpoint: cannot clean up: " + report.cleanup_failure);
  });
}

void Checkpoints::save_now() {
  finish();
  if (saved_step_ == trainer_.steps_done()) return;
  start();
  finish();
}

void Checkpoints::check_last_save() const {
  if (last_failure_.empty()) return;
  throw AgreedError(ErrorCode::kFileSystem, "[checkpoint] the last save failed: " + last_failure_,
                    /*told_elsewhere=*/world_.rank != 0);
}

}  // namespace fsdp::train
