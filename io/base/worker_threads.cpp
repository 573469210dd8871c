#include "io/base/worker_threads.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace fsdp::io {

namespace {

// New threads inherit the mask of the thread that makes them.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_ = {};
};

std::vector<std::thread> start_threads(size_t num_threads, const std::function<void()>& work) {
  const BlockedSignals blocked;
  std::vector<std::thread> threads;
  threads.reserve(num_threads);
  try {
    while (threads.size() < num_threads) threads.emplace_back(work);
  } catch (const std::system_error&) {
    // The system gives no more threads: those there are, or the caller, do all the work.
  }
  return threads;
}

}  // namespace

std::optional<size_t> WorkQueue::next() {
  if (failed_.load(std::memory_order_relaxed)) return std::nullopt;
  const size_t number = next_.fetch_add(1, std::memory_order_relaxed);
  return number < size_ ? std::optional<size_t>(number) : std::nullopt;
}

void WorkQueue::fail(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  if (failure_ == nullptr) failure_ = std::move(failure);
  failed_ = true;
}

void WorkQueue::rethrow_failure() const {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void run_workers(size_t num_items, int num_threads, const std::function<void(WorkQueue&)>& worker) {
  if (num_items == 0) return;
  WorkQueue queue(num_items);
  const auto work = [&] {
    try {
      worker(queue);
    } catch (...) {
      queue.fail(std::current_exception());
    }
  };
  const size_t num_workers = std::min(num_items, static_cast<size_t>(std::max(num_threads, 1)));
  std::vector<std::thread> threads;
  if (num_workers > 1) threads = start_threads(num_workers, work);
  if (threads.empty()) work();
  for (std::thread& thread : threads) thread.join();
  queue.rethrow_failure();
}

}  // namespace fsdp::io
