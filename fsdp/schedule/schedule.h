#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace fsdp::schedule {

// Who decides what is gathered ahead and when gathered weights are freed.
enum class Kind {
  kStaticOrder,     // record the order of units in the first step, gather ahead along it afterwards
  kDelayedRelease,  // no order: a unit is freed only after `delay` others came after it
  kOnDemand,        // gather at the first touch, free at the first touch of another unit
};

// When the next unit of a backward is gathered.
enum class BackwardPrefetch {
  kPre,   // before this unit computes (most overlap, most memory)
  kPost,  // when its gradients are complete, before they are reduced
  kNone,
};

// At the last gradient of a unit: what goes first. Resharding first makes its memory available to the reduction.
enum class ReleaseOrder { kReduceFirst, kReshardFirst };

// Which threads (on a CPU; streams on a GPU) carry collectives: gathers and reductions apart, or all in one queue,
// which holds one gradient buffer less.
enum class CommThreads { kSeparate, kUnified };

inline constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// How the units of one Context take turns. Local data; ranks must use the same. A schedule changes time and memory,
// never a result.
struct Schedule {
  Kind kind = Kind::kStaticOrder;
  int forward_depth = 1;   // kStaticOrder: units gathered ahead at most, in a forward
  int backward_depth = 1;  // and in a backward
  BackwardPrefetch backward = BackwardPrefetch::kPre;
  int64_t max_bytes = kUnlimited;  // kStaticOrder: gathered bytes of the units ahead, together
  int max_gathers_in_flight = 0;   // 0: no limit; else gathers that are on their way at once
  int delay = 1;                   // kDelayedRelease
  ReleaseOrder release = ReleaseOrder::kReduceFirst;
  CommThreads threads = CommThreads::kSeparate;

  static Schedule static_order(int depth = 1, int64_t max_bytes = kUnlimited);
  // After: Megatron-FSDP's delayed release queue.
  static Schedule delayed_release(int delay = 1);
  static Schedule on_demand();
  // The arguments of PyTorch FSDP1. `limit_all_gathers` allows two gathers in flight.
  static Schedule fsdp1(bool forward_prefetch, BackwardPrefetch backward_prefetch, bool limit_all_gathers);

  // Units ahead in this pass.
  int depth_forward() const { return kind == Kind::kStaticOrder ? forward_depth : 0; }
  int depth_backward() const;
  // Reductions that may be on their way when a unit collects gradients. Their buffers take memory; two keep the wire
  // busy.
  size_t reductions_in_flight() const { return threads == CommThreads::kUnified ? 1 : 2; }

  bool operator==(const Schedule&) const = default;
};

// Throws std::invalid_argument naming the field that is out of range.
void check(const Schedule& schedule);

// "static_order(1)", "delayed_release(2), unified", ...
std::string describe(const Schedule& schedule);

}  // namespace fsdp::schedule
