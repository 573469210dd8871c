#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::app {

// What other threads of the launcher have to say; the thread that prints takes it. Thread-safe.
class Notices {
 public:
  void add(std::string text) {
    const std::lock_guard lock(mutex_);
    texts_.push_back(std::move(text));
  }
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(texts_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

}  // namespace fsdp::app
