#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>

namespace fsdp::io {

// The numbers 0 .. size - 1, each handed out once, until a worker fails. Thread-safe.
class WorkQueue {
 public:
  explicit WorkQueue(size_t size) : size_(size) {}

  // The next number; nothing when there is none left or a worker has failed.
  std::optional<size_t> next();
  // Ends the work. The first failure is kept.
  void fail(std::exception_ptr failure);
  void rethrow_failure() const;

 private:
  const size_t size_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

// Runs `worker`, which takes numbers below `num_items` from the queue until there are none, in up to `num_threads`
// threads (at least one; the caller's own if one is enough). The threads block all signals: those are for the main
// thread. Returns when all have ended; throws what the first of them to fail threw.
void run_workers(size_t num_items, int num_threads, const std::function<void(WorkQueue&)>& worker);

}  // namespace fsdp::io
