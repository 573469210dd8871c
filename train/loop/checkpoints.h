#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "fsdp/fsdp.h"
#include "train/base/console.h"
#include "train/config/config.h"
#include "train/config/output_folder.h"
#include "train/loop/event_log.h"
#include "train/loop/run_state.h"
#include "train/loop/trainer.h"

namespace fsdp::train {

// When a run saves, what it says about it, and where it goes on. All methods are COLLECTIVE unless marked local.
class Checkpoints {
 public:
  // All must outlive it. `before_commit` runs on rank 0 before a checkpoint counts: what the run wrote until then shall
  // last as long as it.
  Checkpoints(const Config& config, const World& world, const OutputFolder& folder, Console& console, EventLog& events,
              ShardedModel& model, Trainer& trainer, RunState& run, std::function<void()> before_commit);

  // Local. Throws Error(kFileSystem) if the disk has no room for two checkpoints.
  void check_room() const;

  // The checkpoint that checkpoint.resume names, if it names one: before anything of an earlier run goes.
  void read_of_other_run();
  // What checkpoint.resume asks for. Returns the number of steps done: 0 for a new run.
  int64_t resume();
  // The newest one; false if there is none.
  bool go_back();

  // Local. For RankNews.
  bool written() const { return saver_.written(); }
  bool is_due_by_clock() const;
  // Does somebody ask for a checkpoint by the file SAVE? The file goes once one that was started later counts.
  bool is_asked_for() const;

  // Starts a save if one is due after this step, finishes one that all ranks have written. A save that fails is told,
  // and training goes on.
  void after_step(const StepResult& result, bool is_last);
  // Saves this step, if it is not saved yet, and returns when it is durable.
  void save_now();
  // Finishes the save in flight, if any.
  void finish();
  // Throws Error(kFileSystem) if the last save failed.
  void check_last_save() const;

 private:
  checkpoint::State state();
  bool is_due(const StepResult& result, bool is_last) const;
  void attempt(const std::function<void()>& save);
  void start();
  void tell_resumed(const std::string& place, const checkpoint::LoadReport& report);

  const Config& config_;
  const World& world_;
  OutputFolder folder_;
  Console& console_;
  EventLog& events_;
  ShardedModel& model_;
  Trainer& trainer_;
  RunState& run_;
  std::function<void()> before_commit_;
  checkpoint::Saver saver_;
  std::chrono::steady_clock::time_point last_start_;
  std::optional<checkpoint::LoadReport> of_other_run_;
  std::optional<int64_t> saved_step_;  // newest that is durable
  std::string last_failure_;
  bool answers_request_ = false;  // the save in flight started after the file SAVE was made; rank 0
};

}  // namespace fsdp::train
