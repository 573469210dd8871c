#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/stream_point.h"
#include "fsdp/comm/comm.h"

namespace fsdp::comm {

// Starts a transfer.
using Stage = std::function<Pending()>;

// A collective and what follows it: posting it starts `first`; each of `next` starts a transfer when the one before is
// complete; `finish` runs last. None of them may use what the program's thread uses before wait() returned; on a stream
// lane they may enqueue work of their own.
struct Job {
  Job(std::string name, std::string unit, Stage first)
      : name(std::move(name)), unit(std::move(unit)), first(std::move(first)) {}

  std::string name;  // of its trace event: "gather", "reduce"
  std::string unit;
  Stage first;
  std::vector<Stage> next;
  std::function<void()> finish;
  // Stream lanes only: the job's work comes after these points. Where none is defined, it comes after everything that
  // the current stream was given before post().
  std::vector<StreamPoint> after;
};

// A job that is under way; empty, or done after wait().
class Completion {
 public:
  // What a lane knows of one job.
  class Work {
   public:
    virtual ~Work() = default;
    virtual void wait() = 0;
    virtual void abandon() noexcept = 0;
  };

  Completion() = default;
  explicit Completion(std::unique_ptr<Work> work) : work_(std::move(work)) {}

  bool in_flight() const { return work_ != nullptr; }
  // What the caller does from now on comes after the job. On the CPU it blocks until the job is done, and throws what
  // the job threw; for a job of a stream lane the current stream waits, and the host does not. Call once.
  void wait() {
    if (const auto work = std::exchange(work_, nullptr)) work->wait();
  }
  // Gives the job up, whatever became of it, and returns when its memory may be given back: it is used no more, or, on
  // a device, the stream that posted it waits until it is not. For destructors.
  void abandon() noexcept {
    if (const auto work = std::exchange(work_, nullptr)) work->abandon();
  }

 private:
  std::unique_ptr<Work> work_;
};

// Carries jobs through in the order they were posted, while the program computes. Post from one thread at a time.
class Lane {
 public:
  Lane() = default;
  virtual ~Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  virtual Completion post(Job job) = 0;
  // Makes the job that is carried out throw, and forgets those that wait. Nothing may be posted any more.
  virtual void give_up() {}
};

// What a lane does, on the thread that waits, when it waits; only the first transfer starts at once. For a world of one
// on the CPU, and where ranks have no cores to spare for communication threads.
Completion defer(Job job);

// The two transfers that follow each other in an all-reduce. buffer [size * n]: the sum over ranks, in place, equal
// bits everywhere; staging as Comm::reduce_scatter.
std::array<Stage, 2> all_reduce_stages(const std::shared_ptr<Comm>& comm, const at::Tensor& buffer,
                                       const at::Tensor& staging, const CallLabel& label);
// Both as a job.
Job all_reduce(const std::shared_ptr<Comm>& comm, const at::Tensor& buffer, const at::Tensor& staging,
               const CallLabel& label);

}  // namespace fsdp::comm
