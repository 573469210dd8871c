#include "train/calibrate/turns.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <numeric>
#include <utility>

namespace fsdp::train {
namespace {

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

double own_seconds() {
  if (at::get_num_threads() > 1) return clock_seconds();
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

size_t TimedTurns::add(std::function<void()> run) {
  runs_.push_back(std::move(run));
  return runs_.size() - 1;
}

void TimedTurns::run(double seconds) {
  constexpr size_t kLeast = 3;
  times_.assign(runs_.size(), {});
  for (const auto& run : runs_) run();
  const double begin = clock_seconds();
  for (size_t round = 0; round < kLeast || clock_seconds() - begin < seconds; ++round) {
    for (size_t i = 0; i < runs_.size(); ++i) {
      const double start = own_seconds();
      runs_[i]();
      times_[i].push_back(own_seconds() - start);
    }
  }
}

double TimedTurns::seconds_of(size_t number) const {
  std::vector<double> times = times_.at(number);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  const double most = 2 * *middle;
  const auto end = std::partition(times.begin(), times.end(), [&](double time) { return time <= most; });
  return std::accumulate(times.begin(), end, 0.0) / static_cast<double>(end - times.begin());
}

}  // namespace fsdp::train
