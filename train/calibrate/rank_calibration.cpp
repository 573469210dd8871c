#include "train/calibrate/rank_calibration.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "fsdp/base/error.h"
#include "fsdp/comm/collectives.h"
#include "fsdp/comm/connection.h"
#include "kernels/products/linear.h"
#include "train/calibrate/calibration.h"
#include "train/calibrate/turns.h"

namespace fsdp::train {
namespace {

using SteadyClock = std::chrono::steady_clock;

double seconds_since(SteadyClock::time_point begin) {
  return std::chrono::duration<double>(SteadyClock::now() - begin).count();
}

double mean_over_ranks(const World& world, double value) {
  return sum_over_ranks(world, at::full({1}, value, at::kDouble)).item<double>() / world.size;
}

// Gathers and reductions among all ranks, on memory as training has it: shared where ranks share some.
class RankLink {
 public:
  RankLink(const World& world, c10::ScalarType dtype) : world_(world), comm_(world.connection->world()), dtype_(dtype) {
    all_ = take(kLarge * world.size);
    shard_ = take(kLarge);
    staging_ = at::zeros({comm_->staging_numel(kLarge)}, dtype_);
  }
  ~RankLink() {
    for (const auto& [slab, bytes] : slabs_) arena()->give_back(slab, bytes, comm::SharedArena::Keep::kNothing);
  }
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;

  // Seconds of a call in which each rank contributes so many elements, the mean of a gather and a reduction.
  double call_seconds(int64_t numel, double budget) {
    call(numel);
    barrier(world_, "measuring the link between ranks");
    const double once = mean_over_ranks(world_, seconds_of(1, numel));
    const auto times = static_cast<int64_t>(std::clamp(budget / once, 3.0, 2000.0));
    return mean_over_ranks(world_, seconds_of(times, numel)) / static_cast<double>(times);
  }

  RankLinkSpeed speed(double budget) {
    const double small = call_seconds(kSmall, budget / 2), large = call_seconds(kLarge, budget / 2);
    const auto others = static_cast<double>(world_.size - 1);
    const double item = static_cast<double>(c10::elementSize(dtype_));
    const double rate = others * (kLarge - kSmall) * item / std::max(large - small, 1e-9);
    return {rate, 1e6 * std::max(0.0, small - others * kSmall * item / rate)};
  }

  void set_link(plan::time::Hardware& hardware, double budget) {
    const RankLinkSpeed found = speed(budget);
    hardware.node = {found.bytes_per_second, 0};
    hardware.hops = plan::time::Hops::kNone;
    hardware.start_us = found.call_us;
  }

  // How much longer ranks take that meet about every 10 ms than one of them computes: they are never ready at the same
  // moment, and share a machine with what else runs on it.
  double meetings(double budget) {
    constexpr double kBlock = 0.01;
    const auto product = small_product();
    const double rate = rate_until(product, [&, begin = SteadyClock::now()] { return seconds_since(begin) > kBlock; });
    const auto products = static_cast<int64_t>(std::max(1.0, mean_over_ranks(world_, rate) * kBlock));
    const auto blocks = static_cast<int64_t>(std::max(10.0, budget / kBlock));
    double computed = 0;
    const auto begin = SteadyClock::now();
    for (int64_t block = 0; block < blocks; ++block) {
      const double start = own_seconds();
      for (int64_t i = 0; i < products; ++i) product();
      computed += own_seconds() - start;
      call(1);
    }
    return std::max(1.0, mean_over_ranks(world_, seconds_since(begin)) / mean_over_ranks(world_, computed));
  }

  // How much longer computing takes while transfers run without a pause.
  double slowdown(double budget) {
    const auto product = small_product();
    const double alone = rate_until(product, [&, begin = SteadyClock::now()] { return seconds_since(begin) > budget; });
    const double call = call_seconds(kLarge, 0.1 * budget);
    const auto times = static_cast<int64_t>(std::clamp(budget / call, 3.0, 2000.0));
    std::atomic<bool> done = false;
    std::exception_ptr error;
    std::thread transfers([&] {
      try {
        seconds_of(times, kLarge);
      } catch (...) {
        error = std::current_exception();
      }
      done = true;
    });
    const double beside = rate_until(product, [&] { return done.load(); });
    transfers.join();
    if (error) std::rethrow_exception(error);
    return std::max(0.0, mean_over_ranks(world_, alone / beside - 1));
  }

 private:
  static constexpr int64_t kSmall = int64_t{1} << 10, kLarge = int64_t{1} << 20;  // elements of a rank's part

  const std::shared_ptr<comm::SharedArena>& arena() const { return world_.connection->hosts().links()->own_arena(); }

  at::Tensor take(int64_t numel) {
    if (world_.connection->hosts().links() == nullptr) return at::ones({numel}, dtype_);
    const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype_));
    slabs_.emplace_back(arena()->take(bytes), bytes);
    return at::from_blob(slabs_.back().first, {numel}, dtype_).fill_(1);
  }

  void call(int64_t numel) {
    const at::Tensor all = all_.narrow(0, 0, numel * world_.size), shard = shard_.narrow(0, 0, numel);
    comm_->all_gather(all, shard, {"gather", "calibration", ""}).wait();
    comm_->reduce_scatter(all, shard, staging_, comm::Accumulate::kOverwrite, {"reduce", "calibration", ""}).wait();
  }

  // Of `times` gathers or reductions.
  double seconds_of(int64_t times, int64_t numel) {
    const auto begin = SteadyClock::now();
    for (int64_t i = 0; i < times; ++i) call(numel);
    return seconds_since(begin) / 2;
  }

  static double rate_until(const std::function<void()>& run, const std::function<bool()>& is_over) {
    run();
    const auto begin = SteadyClock::now();
    double runs = 0;
    do {
      run();
      ++runs;
    } while (!is_over());
    return runs / seconds_since(begin);
  }

  // What ranks compute beside transfers and between meetings.
  std::function<void()> small_product() const {
    const int64_t side = 256;
    return [x = at::full({side, side}, 0.5, dtype_), weight = at::full({side, side}, 0.25, dtype_)] {
      const at::NoGradGuard no_grad;
      kernels::linear(x, weight);
    };
  }

  const World& world_;
  std::shared_ptr<comm::Comm> comm_;
  c10::ScalarType dtype_;
  std::vector<std::pair<void*, int64_t>> slabs_;
  at::Tensor all_, shard_, staging_;
};

// All that is computed takes so many times as long.
void slow_down(plan::time::Hardware& hardware, double times) {
  for (auto& [type, peak] : hardware.peak_flops) peak /= times;
  hardware.memory_bytes_per_second /= times;
  for (double* cost : {&hardware.launch_us, &hardware.operator_us, &hardware.attention_forward_row_us,
                       &hardware.attention_backward_row_us})
    *cost *= times;
}

}  // namespace

RankLinkSpeed measure_rank_link(const World& world, double seconds) {
  return RankLink(world, at::kFloat).speed(seconds);
}

plan::time::Hardware calibrate_ranks(const World& world, c10::ScalarType dtype, double seconds) {
  if (world.local_size != world.size)
    throw Error(ErrorCode::kUsage, "[calibrate] ranks: got " + std::to_string(world.size) + " on several hosts with " +
                                       std::to_string(world.local_size) +
                                       " on this one, expected all on one host. Calibrate one host, and set `network` "
                                       "in its file to what a rank has between hosts.");
  barrier(world, "measuring this machine");
  plan::time::Hardware hardware = calibrate_cpu(dtype, (world.size > 1 ? 0.8 : 1.0) * seconds);
  if (world.size == 1) return hardware;
  for (auto& [type, peak] : hardware.peak_flops) peak = mean_over_ranks(world, peak);
  for (double* value : {&hardware.launch_us, &hardware.operator_us, &hardware.attention_forward_efficiency,
                        &hardware.attention_backward_efficiency, &hardware.attention_forward_row_us,
                        &hardware.attention_backward_row_us, &hardware.masked_attention_forward_efficiency,
                        &hardware.masked_attention_backward_efficiency, &hardware.memory_bytes_per_second})
    *value = mean_over_ranks(world, *value);
  RankLink link(world, dtype);
  link.set_link(hardware, 0.05 * seconds);
  hardware.slowdown_by_transfers = link.slowdown(0.02 * seconds);
  slow_down(hardware, link.meetings(0.1 * seconds));
  return hardware;
}

}  // namespace fsdp::train
