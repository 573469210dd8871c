#pragma once

#include <memory>
#include <vector>

#include "fsdp/comm/comm.h"
#include "fsdp/comm/host/host_links.h"
#include "fsdp/comm/lane.h"

namespace fsdp {

// The ranks that a group shares its parameters with, and the lanes that carry its collectives.
struct GroupLinks {
  // Ranks that hold the shards (no_shard: all ranks), for gathers and for reductions: on a device each has a
  // communicator of its own, on the CPU both are the same.
  std::shared_ptr<comm::Comm> shard;
  std::shared_ptr<comm::Comm> shard_reduce;
  // Likewise ranks that hold the same shards, for reductions; null where there is but one. And for gathers, where the
  // strategy makes any over replicas.
  std::shared_ptr<comm::Comm> replicate;
  std::shared_ptr<comm::Comm> replicate_gather;
  // Ranks between which weights stay sharded from forward to backward, when those are fewer than `shard`; else null.
  std::shared_ptr<comm::Comm> forward;
  // Not null where all ranks of `shard` run on one host and keep one copy of their gathered weights.
  std::shared_ptr<comm::HostLinks> host;
  std::vector<int> host_places;  // theirs among the ranks of the host, in that case
  // Null on a CPU without communication threads: jobs are then carried out by who waits for them.
  std::shared_ptr<comm::Lane> gather_lane;
  std::shared_ptr<comm::Lane> reduce_lane;

  static comm::Completion post(const std::shared_ptr<comm::Lane>& lane, comm::Job job) {
    return lane ? lane->post(std::move(job)) : comm::defer(std::move(job));
  }
};

// Bytes that one of `comm`'s ranks receives when a buffer of `bytes` is gathered or reduce-scattered.
inline int64_t received_bytes(int64_t bytes, const comm::Comm& comm) { return bytes / comm.size() * (comm.size() - 1); }

}  // namespace fsdp
