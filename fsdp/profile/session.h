#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/trace.h"

namespace fsdp::profile {

// Milliseconds that one unit took while a session recorded. Times of different threads overlap, so they do not add up.
struct UnitTimes {
  std::string unit;
  double compute = 0;     // its operators ran (forward and backward), waits left out
  double gather = 0;      // its weights were on their way
  double reduce = 0;      // its gradients were
  double overlapped = 0;  // part of gather + reduce during which some unit computed
  double exposed = 0;     // the program waited for them
  double idle = 0;        // part of gather + reduce during which the program neither computed nor waited for them
};

// The whole session: compute + exposed + other = window.
struct Totals {
  double window = 0;
  double compute = 0;
  double exposed = 0;
  double other = 0;  // optimizer, loss, data, and what the library does itself
};

// Records what the library does for the thread that made the session, its communication threads included, from
// construction to stop(). Local. The names of events are those of docs/one_step.md.
class Session {
 public:
  // `rank` becomes the process number of the trace, so that the files of several ranks can be looked at together.
  explicit Session(int rank = 0);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void stop();
  const std::vector<TraceEvent>& events() const { return events_; }

  // As a trace of Chrome's format, which ui.perfetto.dev opens. One row per thread: the program with its units, and
  // each communication thread. Throws Error(kFileSystem). Calls stop() first if nobody did.
  void write(const std::string& path);
  // The events of such a trace, separated by commas, for a file of several ranks.
  std::string chrome_events();

  // In the order in which units first computed.
  std::vector<UnitTimes> units();
  Totals totals();
  // Both as a table of text.
  std::string summary();

 private:
  int rank_;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point end_;
  std::unique_ptr<TraceCollector> collector_;  // null once stopped
  std::vector<TraceEvent> events_;
};

}  // namespace fsdp::profile
