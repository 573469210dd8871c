#pragma once

#include <cstdint>

#include "plan/time/hardware.h"

namespace fsdp::plan::time {

// Ranks that meet: `size` of them, `in_node` on each node they are spread over.
struct RankGroup {
  int size = 1;
  int in_node = 1;

  // Neighbouring ranks, as along the axis `shard`.
  static RankGroup neighbours(int size, int ranks_per_node);
  // Every `stride`-th rank, as along `replicate`.
  static RankGroup strided(int size, int stride, int ranks_per_node);
};

enum class LinkKind { kNode, kNetwork };

// How long a transfer holds its link, after `latency_ms` in which it holds nothing.
struct Transfer {
  LinkKind link = LinkKind::kNode;
  double latency_ms = 0;
  double link_ms = 0;

  double alone_ms() const { return latency_ms + link_ms; }
};

// All-gather into, or reduce-scatter of, `bytes` in all shards together. A ring: each rank receives (n - 1) / n of
// them, over size - 1 hops; between nodes the ranks of a node use their network cards side by side, and may have no
// more than the node's own link carries. A tree (Hops::kTree) has log2 as many hops.
Transfer scatter_or_gather(int64_t bytes, const RankGroup& group, const Hardware& hardware);

// Every rank has `bytes` for all ranks together, as many for each. What leaves a node does so through the rank's own
// card; messages go side by side.
Transfer exchange(int64_t bytes, const RankGroup& group, const Hardware& hardware);

// From one rank to another.
Transfer message(int64_t bytes, LinkKind link, const Hardware& hardware);

}  // namespace fsdp::plan::time
