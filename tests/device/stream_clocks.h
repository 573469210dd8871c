#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace fsdp::testing {

// A stream of some device; the default stream of the first is 0.
using StreamKey = int64_t;
// How far of each stream something has seen: a vector clock.
using Clock = std::map<StreamKey, int64_t>;

struct Access {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool writes = false;
};

// What a stream was given.
struct StreamTask {
  std::string name;   // of the operator
  std::string range;  // that was shown to profilers meanwhile: "gather layers.1"
  StreamKey stream = 0;
  Clock seen;  // what comes before it, itself included
};

// Order among streams, and what of it is missing: each stream keeps its own order, and comes after others only where it
// waits for their events or where the host waited. Two tasks that touch the same bytes, one of them writing, without an
// order are a race, whatever the values came out as. Thread-safe.
// After: the vector clocks of FastTrack (Flanagan and Freund 2009), as in torch.cuda._sanitizer.
class StreamClocks {
 public:
  void run(StreamKey stream, const std::string& name, const std::string& range, const std::vector<Access>& accesses);
  // What a stream that waits for the end of `stream` now has seen.
  Clock now(StreamKey stream);
  void hold_back(StreamKey stream, const Clock& until);
  // The host waits; it may do so for a stream, an event or a copy.
  void host_waits(const Clock& until);
  void note_recorded_stream();

  // Whether `later` cannot start before `earlier` has ended.
  static bool comes_after(const StreamTask& later, const StreamTask& earlier);

  std::vector<StreamTask> tasks() const;
  std::vector<std::string> races() const;
  int64_t num_host_waits() const;
  int64_t num_recorded_streams() const;  // calls of record_stream
  // Forgets tasks, races and counts, not the order.
  void clear();

 private:
  struct Touched {
    int64_t time = 0;  // 0: never
    StreamKey stream = 0;
    std::string what;
  };
  struct Bytes {
    uintptr_t end = 0;
    Touched write;
    std::map<StreamKey, Touched> reads;
  };

  void split(uintptr_t at);
  void touch(const Access& access, const Touched& now, const Clock& seen);
  void check(const Touched& before, const Touched& now, const Clock& seen);

  mutable std::mutex mutex_;
  std::map<StreamKey, Clock> clocks_;
  Clock host_;
  std::map<uintptr_t, Bytes> memory_;  // by first address
  std::vector<StreamTask> tasks_;
  std::vector<std::string> races_;
  int64_t host_waits_ = 0;
  int64_t recorded_streams_ = 0;
};

}  // namespace fsdp::testing
