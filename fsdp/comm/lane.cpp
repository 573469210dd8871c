#include "fsdp/comm/lane.h"

#include <ATen/ATen.h>

namespace fsdp::comm {
namespace {

class DeferredWork : public Completion::Work {
 public:
  explicit DeferredWork(Job job) : job_(std::move(job)), first_(job_.first()) {}

  void wait() override {
    first_.wait();
    for (const Stage& start : job_.next) start().wait();
    if (job_.finish) job_.finish();
  }
  void abandon() noexcept override {}

 private:
  Job job_;
  Pending first_;
};

}  // namespace

Completion defer(Job job) { return Completion(std::make_unique<DeferredWork>(std::move(job))); }

std::array<Stage, 2> all_reduce_stages(const std::shared_ptr<Comm>& comm, const at::Tensor& buffer,
                                       const at::Tensor& staging, const CallLabel& label) {
  const int64_t shard = buffer.numel() / comm->size();
  const at::Tensor own = buffer.narrow(0, comm->rank() * shard, shard);
  return {[=] { return comm->reduce_scatter(buffer, own, staging, Accumulate::kOverwrite, label); },
          [=] {
            return comm->all_gather(buffer, own, {label.op + " (gather)", label.unit, label.cause, label.part});
          }};
}

Job all_reduce(const std::shared_ptr<Comm>& comm, const at::Tensor& buffer, const at::Tensor& staging,
               const CallLabel& label) {
  const auto stages = all_reduce_stages(comm, buffer, staging, label);
  Job job(label.op, label.unit, stages[0]);
  job.next.push_back(stages[1]);
  return job;
}

}  // namespace fsdp::comm
