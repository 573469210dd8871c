#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "train/base/console.h"
#include "train/prepare/prepare_task.h"

namespace fsdp::train {

// Threads that work on tasks, as few at a time as keep all of them busy: while one reads from a file, others encode
// what it has read, so that a single file uses all cores too.
class PreparePool {
 public:
  using Tasks = std::vector<std::unique_ptr<PrepareTask>>;

  // Starts. All must outlive it; a negative number of threads is an error of the caller.
  PreparePool(const Tasks& tasks, const PreparePlan& plan, int num_threads);
  // Waits for the threads, which end after what they are at.
  ~PreparePool();
  PreparePool(const PreparePool&) = delete;
  PreparePool& operator=(const PreparePool&) = delete;

  // Returns when all is written; throws what the first thread to fail threw. Calls `tell` now and then.
  template <class Tell>
  void wait(std::chrono::milliseconds period, const Tell& tell) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, period, [this] { return num_running_ == 0; })) tell();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void work();
  PrepareTask* acquire();
  void release(PrepareTask* task);
  PrepareTask* find_task();

  const Tasks& tasks_;
  const PreparePlan& plan_;
  size_t most_waiting_;  // batches of a task that wait for one that takes long

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<PrepareTask*> idle_;  // begun, not read to the end, and no thread reads from it; the oldest first
  size_t num_reading_ = 0;
  size_t next_task_ = 0;
  size_t num_running_ = 0;
  bool stops_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

}  // namespace fsdp::train
