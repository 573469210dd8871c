#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "fsdp/base/trace.h"
#include "fsdp/comm/lane.h"

namespace fsdp::comm {

// The lane of the CPU: a thread of its own. post() starts a job's first transfer on the calling thread.
class CommThread : public Lane {
 public:
  explicit CommThread(std::string name);
  // Gives up what is in flight: peers that wait for this rank meet their deadline, or a closed connection.
  ~CommThread() override;

  Completion post(Job job) override;
  void give_up() override;

 private:
  struct State;
  struct Item;
  class Work;
  void run();
  void abandon(State& completion);
  void fail_queue(const std::exception_ptr& error);
  void carry_out(Item& item);
  void carry_out_stage(Pending& transfer);

  std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Item>> queue_;
  const void* working_on_ = nullptr;   // the completion of the job that is carried out
  bool abandoned_ = false;             // nobody wants it any more
  std::shared_ptr<Transfer> current_;  // what is waited for
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace fsdp::comm
