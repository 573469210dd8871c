#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

namespace fsdp::train {

// How fast a run goes, by this process's clock. What is not training (evaluations, samples) does not count. Not
// thread-safe.
class Pace {
 public:
  using Clock = std::chrono::steady_clock;

  // The run begins, or goes on, after `step`.
  void start(int64_t step);
  // A step took `seconds`, of which it waited for batches.
  void add_step(double seconds, double data_seconds);
  // So long nothing was trained.
  void pause(Clock::duration duration) { mark_ += duration; }
  // The line before of the log is that of `step`.
  void mark(int64_t step);
  // Steps after `step` are done again.
  void go_back_to(int64_t step);

  double elapsed() const;            // seconds since start()
  double mean_step_seconds() const;  // of the last 20; 0 before the first
  // That the steps after `done` up to `steps` will take, as the last 20 did: in proportion to their work, of which
  // `work_before` says how much there was in all steps before one.
  double seconds_for(int64_t done, int64_t steps, const std::function<int64_t(int64_t step)>& work_before) const;
  // Steps that would end until so many seconds after start(), each as long as the median.
  int64_t steps_until(double seconds) const;
  double median_step_seconds() const;  // of all but the first three, which find their memory

  // Since the line before, which was of an earlier step.
  struct Window {
    double steps = 0;
    double seconds = 0;
    double data_seconds = 0;
  };
  Window since_mark(int64_t step) const;

 private:
  Clock::time_point begin_;
  Clock::time_point mark_;
  int64_t marked_step_ = 0;
  double data_seconds_ = 0;  // since the mark
  std::vector<double> step_seconds_;

  size_t num_mean_steps() const;
};

double seconds_since(Pace::Clock::time_point begin);

}  // namespace fsdp::train
