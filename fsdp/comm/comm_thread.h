#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fsdp/base/trace.h"
#include "fsdp/comm/comm.h"

namespace fsdp::comm {

// Starts a transfer.
using Stage = std::function<Pending()>;

// A collective and what follows it: `first` is started already; each of `next` starts a transfer when the one before is
// complete; `finish` runs last. None of them may use what the program's thread uses before wait() returned.
struct Job {
  Job(std::string name, std::string unit, Pending first)
      : name(std::move(name)), unit(std::move(unit)), first(std::move(first)) {}

  std::string name;  // of its trace event: "gather", "reduce"
  std::string unit;
  Pending first;
  std::vector<Stage> next;
  std::function<void()> finish;
};

// A job that is under way; empty, or done after wait().
class Completion {
 public:
  bool in_flight() const { return state_ != nullptr; }
  // Blocks until the job is done; throws what it threw. Call once.
  void wait();
  // Gives the job up, whatever became of it, and returns when it uses no memory any more. For destructors.
  void abandon() noexcept;

 private:
  friend class CommThread;
  friend Completion defer(Job job);
  struct State;
  std::shared_ptr<State> state_;
  std::shared_ptr<Job> deferred_;
};

// Carries jobs through on a thread of its own, in the order they were posted, so that the program computes meanwhile.
// Post from one thread.
class CommThread {
 public:
  explicit CommThread(std::string name);
  // Gives up what is in flight: peers that wait for this rank meet their deadline, or a closed connection.
  ~CommThread();
  CommThread(const CommThread&) = delete;
  CommThread& operator=(const CommThread&) = delete;

  Completion post(Job job);
  // Makes the job that is carried out throw, and forgets those that wait. Nothing may be posted any more.
  void give_up();

 private:
  struct Item;
  void run();
  friend class Completion;
  void abandon(Completion::State& completion);
  void fail_queue(const std::exception_ptr& error);
  void carry_out(Job& job);
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

// What CommThread::post() does, on the thread that waits, when it waits: for a world of one, and where ranks have no
// cores to spare for communication threads.
Completion defer(Job job);

// The two transfers that follow each other in an all-reduce. buffer [size * n]: the sum over ranks, in place, equal
// bits everywhere; staging as Comm::reduce_scatter.
std::array<Stage, 2> all_reduce_stages(const std::shared_ptr<Comm>& comm, const at::Tensor& buffer,
                                       const at::Tensor& staging, const CallLabel& label);
// Both as a job; starts the first.
Job all_reduce(const std::shared_ptr<Comm>& comm, const at::Tensor& buffer, const at::Tensor& staging,
               const CallLabel& label);

}  // namespace fsdp::comm
