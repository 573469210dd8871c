#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "app/launch/attempt.h"
#include "app/launch/launch_options.h"
#include "app/launch/restart_policy.h"
#include "app/launch/signal_inbox.h"

namespace fsdp::app {

// The key-value store of one attempt after the other.
struct JobStore {
  std::function<uint16_t()> listen;  // ends the last attempt's; returns the port on 127.0.0.1 where ranks may connect
  std::function<void()> serve;       // them, on a thread of its own
};

// Runs one process per rank on this host, stops all when one fails, and starts all again as often as the options and
// the RestartPolicy allow. Signals are passed on to the ranks; after one there is no restart. Single use.
class Launcher {
 public:
  // From here on signals are blocked as SignalInbox says.
  explicit Launcher(LaunchOptions options);

  // Returns the exit code for this process: 0 if all ranks finished; 75 if they stopped as asked and the run can be
  // resumed; 128 + n if signal n ended it; else that of the rank that failed first (128 + n for signal n). What comes
  // in `notices` meanwhile is printed.
  int run(const JobStore& store, Notices& notices);

 private:
  int report_stop(const AttemptEnd& end, RankOutput& output) const;
  int report_failure(const AttemptEnd& end, const std::string& why_no_restart, RankOutput& output) const;
  std::string name_culprit(const AttemptEnd& end) const;

  LaunchOptions options_;
  SignalInbox signals_;
};

}  // namespace fsdp::app
