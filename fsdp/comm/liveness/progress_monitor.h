#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "fsdp/comm/liveness/call_log.h"
#include "fsdp/comm/liveness/heartbeat.h"
#include "fsdp/comm/liveness/progress_note.h"
#include "fsdp/comm/rendezvous/bounded_store.h"

namespace fsdp::comm {

// Publishes a note on this rank's calls to the store, a few times a second while there are any and at each heartbeat,
// from its own thread, so that the hot path only writes its log and yet every rank can be asked what it did last.
// Watches over the others at each heartbeat.
class ProgressMonitor {
 public:
  // `on_loss` is called once, by the monitor's thread, with the reason to give up. All references outlive the monitor.
  ProgressMonitor(BoundedStore& store, const CallLog& calls, const Roster& roster, const Waits& waits,
                  const HeartbeatOptions& options, std::function<void(const std::string&)> on_loss);
  // Tells the others that this rank leaves by itself.
  ~ProgressMonitor();

  // What `rank` published last; nothing if it did not, or if the store does not answer.
  std::optional<ProgressNote> note_of(int rank);
  // Tells the store what this rank's calls are, now rather than in a moment. Thread-safe.
  void publish();

 private:
  void run();
  void tick();
  void write(bool has_left, BoundedStore::Patience patience);

  BoundedStore& store_;
  const CallLog& calls_;
  int rank_;
  std::chrono::milliseconds period_;
  Heartbeat heartbeat_;
  std::function<void(const std::string&)> on_loss_;
  bool is_lost_ = false;
  std::chrono::steady_clock::time_point next_beat_;
  std::mutex note_mutex_;  // notes go out in the order of their beats
  int64_t beat_ = 0;
  int64_t published_revision_ = -1;
  std::mutex mutex_;
  std::condition_variable stop_changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace fsdp::comm
