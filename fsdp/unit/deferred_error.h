#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <utility>

namespace fsdp {

// Holds an error that happened where nothing may be thrown (LibTorch swallows exceptions of observers) until a place
// that may throw asks for it. Keeps the first. Thread-safe.
class DeferredError {
 public:
  void set(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    present_.store(true, std::memory_order_release);
  }

  bool present() const { return present_.load(std::memory_order_acquire); }

  // Throws the error once and forgets it; returns if there is none.
  void rethrow() {
    if (!present()) return;
    std::exception_ptr error;
    {
      const std::lock_guard lock(mutex_);
      error = std::exchange(error_, nullptr);
      present_.store(false, std::memory_order_release);
    }
    if (error) std::rethrow_exception(error);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> present_{false};
};

}  // namespace fsdp
