#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/comm/call_log.h"

namespace fsdp::comm {

// What one rank published of a call it is in, or was in last.
struct Progress {
  int64_t number = 0;
  CallState state = CallState::kDone;
  CallLabel label;
};

// Publishes this rank's calls to the store a few times a second, from its own thread and connection, so that the
// hot path only writes its log and yet every rank can be asked what it did last when a wait reaches its deadline.
class ProgressMonitor {
 public:
  ProgressMonitor(c10::intrusive_ptr<c10d::Store> store, int rank, CallLog& calls);
  ~ProgressMonitor();

  // What `rank` published last: the calls it is in, then the one before; empty if nothing, or if the store is gone.
  std::vector<Progress> progress_of(int rank);

  // Tells the store what this rank's calls are, now rather than in a moment. Thread-safe.
  void publish();

  // This rank gives up because `lost_rank` closed its connection.
  void publish_loss(int lost_rank);
  // The rank that `rank` gave up for, if it said so: follow this to the first that died.
  std::optional<int> loss_of(int rank);

 private:
  void run();
  std::optional<std::string> read(const std::string& key);

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  CallLog& calls_;
  std::atomic<int64_t> published_revision_{-1};
  std::mutex mutex_;
  std::condition_variable stop_changed_;
  bool stop_ = false;
  std::mutex store_mutex_;
  std::thread thread_;
};

}  // namespace fsdp::comm
