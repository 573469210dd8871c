#include "plan/time/simulation.h"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>

#include "plan/time/stream_queues.h"

namespace fsdp::plan::time {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Simulator {
 public:
  Simulator(StreamQueues queues, const Machine& machine)
      : queues_(std::move(queues)), machine_(machine), job_span_(queues_.jobs.size(), -1) {
    job_ends_.assign(queues_.jobs.size(), kNever);
    reserved_ = job_ends_;
    for (size_t i = 0; i < queues_.jobs.size(); ++i) lane_of(queues_.jobs[i]).jobs.push_back(static_cast<int>(i));
  }

  Timeline run() {
    while (true) {
      while (settle()) {
      }
      if (computed_ == queues_.computations.size()) break;
      advance(time_to_next_event());
    }
    timeline_.step_ms = now_;
    return std::move(timeline_);
  }

 private:
  // A lane and the job that it is at.
  struct Lane {
    std::vector<int> jobs;
    size_t next = 0;
    bool runs = false;
    double begin = 0;
    int cause = -1;
    int last_span = -1;
    size_t stage = 0;
    double latency_left = 0;
    double link_left = 0;

    bool holds_link() const { return runs && latency_left == 0 && link_left > 0; }
  };

  Lane& lane_of(const StreamQueues::Job& job) { return lanes_[job.lane == Stream::kReductions ? 1 : 0]; }

  // ---- what happens without time passing; true if something did
  bool settle() {
    bool changed = settle_computation();
    if (machine_.sharing == Sharing::kQueue) reserve_links();
    for (Lane& lane : lanes_) changed = settle(lane) || changed;
    return changed;
  }

  bool settle_computation() {
    if (computed_ == queues_.computations.size()) return false;
    const StreamQueues::Computation& computation = queues_.computations[computed_];
    if (!computes_) {
      computes_ = true;
      compute_begin_ = now_;
      compute_left_ = computation.ms;
    }
    const bool waits = computation.waits_for >= 0;
    const size_t job = static_cast<size_t>(computation.waits_for);
    if (waits ? job_ends_[job] == kNever : compute_left_ > 0) return false;
    // A wait that took no time has no cause but what came before it.
    const bool stood_still = waits && now_ > compute_begin_;
    const int cause = stood_still ? job_span_[job] : last_compute_span_;
    if (!waits || stood_still) {
      last_compute_span_ = add_span({Stream::kCompute, computation.instruction, compute_begin_, now_, cause});
    }
    computes_ = false;
    ++computed_;
    computation_spans_.push_back(last_compute_span_);
    return true;
  }

  bool settle(Lane& lane) {
    if (lane.next == lane.jobs.size()) return false;
    const size_t number = static_cast<size_t>(lane.jobs[lane.next]);
    const StreamQueues::Job& job = queues_.jobs[number];
    if (!lane.runs) {
      if (static_cast<size_t>(job.after) > computed_) return false;
      lane.runs = true;
      lane.begin = now_;
      lane.cause =
          later_of(lane.last_span, job.after > 0 ? computation_spans_[static_cast<size_t>(job.after) - 1] : -1);
      lane.stage = 0;
      start_stage(lane, number);
      return true;
    }
    if (lane.latency_left > 0 || lane.link_left > 0) return false;
    if (++lane.stage < job.transfers.size()) {
      start_stage(lane, number);
      return true;
    }
    job_ends_[number] = now_;
    job_span_[number] = lane.last_span = add_span({job.lane, job.instruction, lane.begin, now_, lane.cause});
    lane.runs = false;
    ++lane.next;
    return true;
  }

  int later_of(int a, int b) const {
    const auto end = [this](int span) { return span < 0 ? -1.0 : timeline_.spans[static_cast<size_t>(span)].end_ms; };
    return end(a) > end(b) ? a : b;
  }

  int add_span(const Span& span) {
    timeline_.spans.push_back(span);
    return static_cast<int>(timeline_.spans.size()) - 1;
  }

  void start_stage(Lane& lane, size_t number) {
    const StreamQueues::Job& job = queues_.jobs[number];
    lane.latency_left = lane.link_left = 0;
    if (lane.stage >= job.transfers.size()) return;  // nobody to talk to
    const Transfer& transfer = job.transfers[lane.stage];
    if (machine_.sharing == Sharing::kEven) {
      lane.latency_left = transfer.latency_ms;
      lane.link_left = transfer.link_ms;
    } else {
      const double end = lane.stage == 0 ? end_of_first(number) : reserve(transfer);
      lane.latency_left = std::max(0.0, end - now_);
    }
  }

  // Sharing::kQueue: a job's first transfer takes its place on the link when the job is posted.
  void reserve_links() {
    for (; posted_ < queues_.jobs.size(); ++posted_) {
      if (static_cast<size_t>(queues_.jobs[posted_].after) > computed_) return;
      if (!queues_.jobs[posted_].transfers.empty()) end_of_first(posted_);
    }
  }

  double end_of_first(size_t number) {
    double& end = reserved_[number];
    if (end == kNever) end = reserve(queues_.jobs[number].transfers.front());
    return end;
  }

  double reserve(const Transfer& transfer) {
    double& busy_until = busy_until_[static_cast<size_t>(transfer.link)];
    return busy_until = std::max(busy_until, now_) + transfer.alone_ms();
  }

  // ---- time
  double link_rate(const Lane& lane) const {
    const auto link = [this](const Lane& at) {
      return queues_.jobs[static_cast<size_t>(at.jobs[at.next])].transfers[at.stage].link;
    };
    int users = 0;
    for (const Lane& other : lanes_) users += other.holds_link() && link(other) == link(lane) ? 1 : 0;
    return 1.0 / users;
  }

  double compute_rate() const {
    const bool disturbed = std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.runs; });
    return disturbed ? 1 / (1 + machine_.slowdown_by_transfers) : 1;
  }

  double time_to_next_event() const {
    double time = computes_ && compute_left_ > 0 ? compute_left_ / compute_rate() : kNever;
    for (const Lane& lane : lanes_) {
      if (!lane.runs) continue;
      time = std::min(time, lane.latency_left > 0 ? lane.latency_left : lane.link_left / link_rate(lane));
    }
    if (time == kNever) throw std::logic_error("[simulate] the step waits for something that never starts");
    return time;
  }

  // What is done to within rounding is done.
  static void spend(double& left, double amount) { left = left <= amount * (1 + 1e-12) ? 0 : left - amount; }

  void advance(double time) {
    const std::array<double, 2> rates = {lanes_[0].holds_link() ? link_rate(lanes_[0]) : 0,
                                         lanes_[1].holds_link() ? link_rate(lanes_[1]) : 0};
    if (computes_ && compute_left_ > 0) spend(compute_left_, time * compute_rate());
    for (size_t i = 0; i < lanes_.size(); ++i) {
      if (!lanes_[i].runs) continue;
      if (lanes_[i].latency_left > 0) {
        spend(lanes_[i].latency_left, time);
      } else {
        spend(lanes_[i].link_left, time * rates[i]);
      }
    }
    now_ += time;
  }

  StreamQueues queues_;
  Machine machine_;
  double now_ = 0;
  size_t computed_ = 0;  // computations that are done
  bool computes_ = false;
  double compute_begin_ = 0;
  double compute_left_ = 0;
  int last_compute_span_ = -1;
  std::vector<int> computation_spans_;  // the last span of the computing stream when each computation was done
  std::array<Lane, 2> lanes_;
  std::vector<double> job_ends_;
  std::vector<int> job_span_;
  size_t posted_ = 0;
  std::vector<double> reserved_;  // when a job's first transfer gives the link back
  std::array<double, 2> busy_until_ = {0, 0};
  Timeline timeline_;
};

}  // namespace

Timeline simulate(const std::vector<Instruction>& script, const StepWork& work, const StepCosts& costs,
                  const Machine& machine) {
  return Simulator(make_queues(script, work, costs, machine.execution), machine).run();
}

}  // namespace fsdp::plan::time
