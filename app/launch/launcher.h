#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/launch/child.h"
#include "app/launch/rank_output.h"

namespace fsdp::app {

struct LaunchOptions {
  int nproc = 1;
  bool prefix = true;
  std::chrono::milliseconds grace = std::chrono::seconds(10);  // between TERM and KILL
  std::string program;
  std::vector<std::string> arguments;  // argv of each rank
};

// Runs one process per rank on this host and stops all when one fails. Single use.
class Launcher {
 public:
  // From here on INT, TERM and CHLD are blocked in this thread and those it starts.
  explicit Launcher(LaunchOptions options);
  // Kills what still runs.
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // `store_port`: where the key-value store of the job listens on 127.0.0.1; the caller keeps it alive.
  // Returns the exit code for this process: 0, that of the rank that failed first (128 + n for signal n), or 128 + n if
  // signal n stopped the launcher.
  int run(uint16_t store_port);

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { kRunning, kFailed, kStopping, kKilled };

  void start_ranks();
  ChildCommand command_of(int rank) const;
  void wait_for_events();
  void read_signals();
  void read_output(int rank);
  void collect_exits();
  void note_exit(int rank);
  void advance(Clock::time_point now);
  void signal_all(int signal_number);
  bool any_running() const;
  int report();

  LaunchOptions options_;
  uint16_t store_port_ = 0;
  int cores_;
  RankOutput output_;
  std::vector<Child> children_;
  int signals_ = -1;
  State state_ = State::kRunning;
  std::optional<int> culprit_;      // rank that failed first
  std::optional<int> stop_signal_;  // INT or TERM that the launcher got
  Clock::time_point deadline_;      // of the current state
};

}  // namespace fsdp::app
