#include "plan/time/stream_queues.h"

#include <algorithm>
#include <deque>
#include <map>

namespace fsdp::plan::time {
namespace {

// Memory of gathered weights by size: as many slabs as are ever in use together, free at the step's start, taken in the
// order in which they came back. A slab is known by the number of computations that came before its release.
class Slabs {
 public:
  Slabs(const std::vector<Instruction>& script, const StepWork& work) {
    std::map<int64_t, int> in_use, most;
    for (const Instruction& instruction : script) {
      if (instruction.unit < 0) continue;
      const int64_t bytes = work.units[static_cast<size_t>(instruction.unit)].gather_bytes;
      if (instruction.action == Action::kStartGather) most[bytes] = std::max(most[bytes], ++in_use[bytes]);
      if (instruction.action == Action::kReshard) --in_use[bytes];
    }
    for (const auto& [bytes, count] : most) idle_[bytes].assign(static_cast<size_t>(count), 0);
  }

  int take(int64_t bytes) {
    std::deque<int>& idle = idle_[bytes];
    const int released = idle.front();
    idle.pop_front();
    return released;
  }
  void give_back(int64_t bytes, int released) { idle_[bytes].push_back(released); }

 private:
  std::map<int64_t, std::deque<int>> idle_;
};

class QueueMaker {
 public:
  QueueMaker(const std::vector<Instruction>& script, const StepWork& work, const StepCosts& costs, Execution execution)
      : script_(script),
        work_(work),
        costs_(costs),
        execution_(execution),
        slabs_(script, work),
        last_gather_(work.units.size(), -1),
        last_reduce_(work.units.size(), -1),
        last_computed_(work.units.size(), 0) {}

  StreamQueues make() {
    for (const Instruction& instruction : script_) add(instruction);
    return std::move(queues_);
  }

 private:
  int num_computations() const { return static_cast<int>(queues_.computations.size()); }

  void add(const Instruction& instruction) {
    const size_t unit = static_cast<size_t>(std::max(0, instruction.unit));
    const int64_t slab_bytes = work_.units[unit].gather_bytes;
    switch (instruction.action) {
      case Action::kCompute:
        queues_.computations.push_back({instruction, costs_.compute_ms(instruction), -1});
        last_computed_[unit] = num_computations();
        break;
      case Action::kEndBackward:
      case Action::kOptimize:
        queues_.computations.push_back({instruction, costs_.compute_ms(instruction), -1});
        break;
      case Action::kStartGather: {
        const int released = slabs_.take(slab_bytes);
        const bool runs_ahead = execution_ == Execution::kHostRunsAhead;
        last_gather_[unit] = post(instruction, Stream::kGathers, runs_ahead ? released : num_computations());
        break;
      }
      case Action::kStartReduce:
        last_reduce_[unit] = post(instruction, Stream::kReductions, num_computations());
        break;
      case Action::kWaitGather:
        queues_.computations.push_back({instruction, 0, last_gather_[unit]});
        break;
      case Action::kWaitReduce:
        queues_.computations.push_back({instruction, 0, last_reduce_[unit]});
        break;
      case Action::kReshard:
        slabs_.give_back(slab_bytes, last_computed_[unit]);
        break;
    }
  }

  int post(const Instruction& instruction, Stream lane, int after) {
    StreamQueues::Job job{instruction, lane, {}, after};
    if (work_.schedule.threads == schedule::CommThreads::kUnified) job.lane = Stream::kGathers;
    for (const Transfer& transfer : costs_.transfers(instruction)) {
      if (transfer.alone_ms() > 0) job.transfers.push_back(transfer);
    }
    queues_.jobs.push_back(std::move(job));
    return static_cast<int>(queues_.jobs.size()) - 1;
  }

  const std::vector<Instruction>& script_;
  const StepWork& work_;
  const StepCosts& costs_;
  Execution execution_;
  Slabs slabs_;
  std::vector<int> last_gather_, last_reduce_;  // jobs of each unit
  std::vector<int> last_computed_;              // computations up to the unit's last one
  StreamQueues queues_;
};

}  // namespace

StreamQueues make_queues(const std::vector<Instruction>& script, const StepWork& work, const StepCosts& costs,
                         Execution execution) {
  return QueueMaker(script, work, costs, execution).make();
}

}  // namespace fsdp::plan::time
