#include "fsdp/comm/liveness/straggler.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "fsdp/base/check.h"

namespace fsdp {
namespace {

// The lower one of two in the middle: of two ranks the slow one is not half the median.
double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string format_ms(double ms) { return std::to_string(std::llround(ms)) + " ms"; }

}  // namespace

StragglerReport::StragglerReport(int size, StragglerOptions options)
    : options_(options), slow_steps_(static_cast<size_t>(std::max(size, 0))), is_straggler_(slow_steps_.size()) {
  FSDP_CHECK(size > 0 && options_.factor > 1 && options_.slow_steps > 0 && options_.slow_steps <= options_.window,
             "[straggler] options: got ", size, " ranks, factor ", options_.factor, ", ", options_.slow_steps, " of ",
             options_.window, " steps, expected a rank, a factor above 1 and at least one step of the window.");
}

std::vector<std::string> StragglerReport::add_step(const std::vector<double>& compute_ms) {
  FSDP_CHECK(compute_ms.size() == slow_steps_.size(), "[straggler] step: got ", compute_ms.size(),
             " times, expected one for each of ", slow_steps_.size(), " ranks.");
  const double limit = options_.factor * median(compute_ms);
  std::vector<bool> is_slow;
  for (const double ms : compute_ms) is_slow.push_back(ms > limit);
  steps_.push_back(compute_ms);
  was_slow_.push_back(is_slow);
  const bool is_full = steps_.size() > static_cast<size_t>(options_.window);
  std::vector<std::string> changes;
  for (size_t rank = 0; rank < slow_steps_.size(); ++rank) {
    slow_steps_[rank] += is_slow[rank] - (is_full && was_slow_.front()[rank]);
  }
  if (is_full) {
    steps_.pop_front();
    was_slow_.pop_front();
  }
  for (size_t rank = 0; rank < slow_steps_.size(); ++rank) {
    const std::string name = "straggler: rank " + std::to_string(rank);
    if (!is_straggler_[rank] && slow_steps_[rank] >= options_.slow_steps) {
      is_straggler_[rank] = true;
      std::vector<double> all;
      for (size_t other = 0; other < slow_steps_.size(); ++other) all.push_back(typical_ms(static_cast<int>(other)));
      changes.push_back(name + " computes " + format_ms(all[rank]) + " per step, the median is " +
                        format_ms(median(all)));
    } else if (is_straggler_[rank] && 2 * slow_steps_[rank] <= options_.slow_steps) {
      is_straggler_[rank] = false;
      changes.push_back(name + " is no longer slower than the others");
    }
  }
  return changes;
}

std::vector<int> StragglerReport::stragglers() const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < is_straggler_.size(); ++rank) {
    if (is_straggler_[rank]) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

double StragglerReport::typical_ms(int rank) const {
  std::vector<double> values;
  for (const auto& step : steps_) values.push_back(step[static_cast<size_t>(rank)]);
  return median(values);
}

}  // namespace fsdp
