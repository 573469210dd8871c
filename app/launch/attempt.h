#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "app/launch/child.h"
#include "app/launch/launch_options.h"
#include "app/launch/notices.h"
#include "app/launch/rank_output.h"
#include "app/launch/signal_inbox.h"

namespace fsdp::app {

// How the ranks of one attempt ended.
struct AttemptEnd {
  std::optional<int> stop_signal;       // that asked the launcher to stop
  std::optional<int> culprit;           // rank that explains the end; none if all finished, or stopped as asked
  ExitStatus status;                    // of the culprit; without one, of a rank with the weightiest end (Cause)
  std::chrono::milliseconds uptime{0};  // until the culprit ended
  int num_killed = 0;                   // ranks that did not stop in time
};

// Starts all ranks of a job once, then stays with them until all are gone: prints what they write, passes signals on,
// stops the others when one fails. Single use.
class Attempt {
 public:
  // `number`: restarts before this one. `store_port`: where its key-value store listens on 127.0.0.1. `notices` are
  // printed as they come, within a second.
  Attempt(const LaunchOptions& options, int number, uint16_t store_port, SignalInbox& signals, RankOutput& output,
          Notices& notices);
  // Kills what still runs.
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // Throws fsdp::Error if a process cannot be started.
  void start_ranks();
  // Never waits longer than the ranks run, plus the time to stop.
  AttemptEnd run();

 private:
  using Clock = std::chrono::steady_clock;
  // kEnding: a rank ended in a way that ends the job; until the deadline the others may follow, or explain it better.
  // kStopping: ranks were asked to stop, until the deadline. kKilled: they were killed.
  enum class Phase { kRunning, kEnding, kStopping, kKilled };

  ChildCommand command_of(int rank) const;
  void wait_for_events() const;
  void read_output(int rank);
  void collect_exits();
  bool explains_more(const ExitStatus& status) const;  // than what is known of the end so far
  void note_exit(int rank);
  std::chrono::milliseconds time_to_follow(Cause cause) const;
  void pass_on(int signal_number);
  void advance();
  void stop_others();
  void kill_all();
  void signal_all(int signal_number);
  bool any_running() const;
  bool any_heirs() const;
  bool is_over() const;
  bool has_failed() const;
  AttemptEnd conclude();

  const LaunchOptions& options_;
  int number_;
  uint16_t store_port_;
  SignalInbox& signals_;
  RankOutput& output_;
  Notices& notices_;
  std::vector<Child> children_;  // by rank
  Clock::time_point begin_;
  Phase phase_ = Phase::kRunning;
  Clock::time_point deadline_;  // of the phase, except of kRunning
  std::set<int> passed_on_;     // signals
  bool was_urged_ = false;      // by INT or TERM
  AttemptEnd end_;
};

}  // namespace fsdp::app
