#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fsdp/base/block_signals.h"
#include "fsdp/base/error.h"
#include "fsdp/comm/transport/transport.h"

namespace fsdp::comm {

// What the threads of this rank wait for, so that all of it can be given up at once. Thread-safe.
class Waits {
 public:
  // One wait, from construction to destruction. Its transfer is aborted when everything is given up, at once if that
  // has happened already. `waits` may be null.
  class Scope {
   public:
    Scope(std::shared_ptr<Waits> waits, Transfer& transfer);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<Waits> waits_;
    Transfer* transfer_;
  };

  // Ends all waits, and those that come later. The first reason stays.
  void give_up(const std::string& reason);
  // Why everything was given up, if it was.
  std::optional<std::string> reason() const;
  // Of the wait that has lasted longest; 0 if nobody waits.
  std::chrono::milliseconds longest() const;

 private:
  struct Wait {
    Transfer* transfer;
    std::chrono::steady_clock::time_point begin;
  };

  mutable std::mutex mutex_;
  std::vector<Wait> waits_;
  std::optional<std::string> reason_;
};

// Runs `work`, which may block for other ranks in calls that nobody can abort, on a thread of its own, and returns what
// it returns or throws what it throws. When everything is given up, throws Error(kCommunication) that begins with
// `what` and leaves the thread behind; so `work` must own all it uses.
template <class Work>
auto run_unless_given_up(const Waits& waits, const std::string& what, Work work) {
  constexpr std::chrono::milliseconds kLook{20};
  auto task = std::make_shared<std::packaged_task<decltype(work())()>>(std::move(work));
  auto result = task->get_future();
  std::thread thread([task] {
    block_signals();
    (*task)();
  });
  while (result.wait_for(kLook) != std::future_status::ready) {
    const auto reason = waits.reason();
    if (!reason) continue;
    thread.detach();
    throw Error(ErrorCode::kCommunication, what + *reason);
  }
  thread.join();
  return result.get();
}

}  // namespace fsdp::comm
