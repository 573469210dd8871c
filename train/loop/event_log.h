#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "train/base/console.h"
#include "train/base/line_file.h"

namespace fsdp::train {

enum class EventKind {
  kStarted,
  kResumed,       // from a checkpoint
  kCommitted,     // a checkpoint counts
  kSaveFailed,    // and training goes on
  kSpike,         // and the update happened
  kSkipped,       // the weights stayed as they were
  kRolledBack,    // to the last checkpoint
  kPassingError,  // computed wrongly once, then rightly
  kSlowRank,      // a rank is slower than the others, or no longer
  kStopped,       // on request, and can go on
  kEnded,
  kFailed,  // with an error
};

// "skipped": as in events.jsonl.
const char* name(EventKind kind);

// What happens to a run besides its steps: told on the console and kept in events.jsonl, one object a line. Unlike
// other records these lines stay when a run goes back to a checkpoint: that it did is one of them.
class EventLog {
 public:
  // Tells, and keeps nothing until open(). `console` must outlive it.
  explicit EventLog(Console& console) : console_(console) {}

  // Rank 0's, for the holder of the folder's lock. Throws Error(kFileSystem).
  void open(const std::filesystem::path& path);
  // `text`: the line for the console. Local. Throws Error(kFileSystem).
  void tell(EventKind kind, int64_t step, const std::string& text);
  // The same without the console, where somebody else tells it.
  void keep(EventKind kind, int64_t step, const std::string& text);

  struct Start {
    int64_t step = 0;   // done before
    int64_t steps = 0;  // planned
    int64_t ranks = 0;
    int64_t parameters = 0;
    std::string text;
  };
  void keep_start(const Start& start);

 private:
  Console& console_;
  std::optional<LineFile> file_;
};

}  // namespace fsdp::train
