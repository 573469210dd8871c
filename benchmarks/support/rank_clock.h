// Clocks that the ranks of a benchmark read together.
#pragma once

#include <ATen/ATen.h>

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "benchmarks/support/measure.h"
#include "fsdp/fsdp.h"

namespace fsdp::benchmarks {

class RankClock {
 public:
  explicit RankClock(const World& world) : world_(world) {}

  const World& world() const { return world_; }
  // COLLECTIVE.
  void together() const { barrier(world_, "benchmark"); }

  // COLLECTIVE. By rank 0, after what all did before and before what any does next.
  void on_rank0(const std::function<void()>& action) const {
    together();
    if (world_.rank == 0) action();
    together();
  }

  // COLLECTIVE. The last line that rank 0 prints; no rank ends before it.
  void report(const nlohmann::json& result) const {
    if (world_.rank == 0) std::printf("%s\n", result.dump().c_str());
    together();
  }

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
