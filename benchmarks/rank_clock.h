// Clocks that the ranks of a benchmark read together.
#pragma once

#include <ATen/ATen.h>

#include <functional>

#include "benchmarks/measure.h"
#include "fsdp/fsdp.h"

namespace fsdp::benchmarks {

class RankClock {
 public:
  explicit RankClock(const World& world) : world_(world) {}

  const World& world() const { return world_; }
  void together() const { barrier(world_, "benchmark"); }

  // COLLECTIVE. The largest value of any rank.
  double largest(double value) const {
    at::Tensor values = at::zeros({world_.size}, at::kDouble);
    values.mutable_data_ptr<double>()[world_.rank] = value;
    return sum_over_ranks(world_, values).max().item<double>();
  }

  // COLLECTIVE. Seconds of the slowest rank.
  double seconds(const std::function<void()>& action) const {
    together();
    Stopwatch watch;
    action();
    return largest(watch.lap() / 1e3);
  }

 private:
  World world_;
};

}  // namespace fsdp::benchmarks
