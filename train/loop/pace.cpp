#include "train/loop/pace.h"

#include <algorithm>
#include <numeric>

namespace fsdp::train {

double seconds_since(Pace::Clock::time_point begin) {
  return std::chrono::duration<double>(Pace::Clock::now() - begin).count();
}

void Pace::start(int64_t step) {
  begin_ = Clock::now();
  mark(step);
}

void Pace::add_step(double seconds, double data_seconds) {
  step_seconds_.push_back(seconds);
  data_seconds_ += data_seconds;
}

void Pace::mark(int64_t step) {
  mark_ = Clock::now();
  marked_step_ = step;
  data_seconds_ = 0;
}

void Pace::go_back_to(int64_t step) { marked_step_ = std::min(marked_step_, step); }

double Pace::elapsed() const { return seconds_since(begin_); }

size_t Pace::num_mean_steps() const { return std::min<size_t>(20, step_seconds_.size()); }

double Pace::mean_step_seconds() const {
  const auto window = static_cast<std::ptrdiff_t>(num_mean_steps());
  const double sum = std::accumulate(step_seconds_.end() - window, step_seconds_.end(), 0.0);
  return window > 0 ? sum / static_cast<double>(window) : 0;
}

double Pace::seconds_for(int64_t done, int64_t steps, const std::function<int64_t(int64_t)>& work_before) const {
  const auto measured = static_cast<int64_t>(num_mean_steps());
  const int64_t work = work_before(done) - work_before(std::max<int64_t>(0, done - measured));
  if (work <= 0) return 0;
  const double mean_work = static_cast<double>(work) / static_cast<double>(measured);
  return mean_step_seconds() * static_cast<double>(work_before(steps) - work_before(done)) / mean_work;
}

int64_t Pace::steps_until(double seconds) const {
  constexpr double kMost = 1e15;  // what fits into an integer, also where no time is left to divide by
  const double left = std::max(0.0, seconds - elapsed());
  const double median = median_step_seconds();
  return static_cast<int64_t>(median > 0 ? std::min(left / median, kMost) : kMost);
}

double Pace::median_step_seconds() const {
  std::vector<double> seconds(step_seconds_.begin() + (step_seconds_.size() > 3 ? 3 : 0), step_seconds_.end());
  if (seconds.empty()) return 0;
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

Pace::Window Pace::since_mark(int64_t step) const {
  return {static_cast<double>(std::max<int64_t>(1, step - marked_step_)), seconds_since(mark_), data_seconds_};
}

}  // namespace fsdp::train
