#pragma once

#include <memory>
#include <vector>

#include "fsdp/comm/comm.h"
#include "fsdp/comm/comm_thread.h"
#include "fsdp/comm/host_links.h"

namespace fsdp {

// The ranks that a group shares its parameters with, and the threads that carry its collectives.
struct GroupLinks {
  std::shared_ptr<comm::Comm> shard;      // ranks that hold the shards (no_shard: all ranks)
  std::shared_ptr<comm::Comm> replicate;  // ranks that hold the same shards; null where there is but one
  // Ranks between which weights stay sharded from forward to backward, when those are fewer than `shard`; else null.
  std::shared_ptr<comm::Comm> forward;
  // Not null where all ranks of `shard` run on one host and keep one copy of their gathered weights.
  std::shared_ptr<comm::HostLinks> host;
  std::vector<int> host_places;  // theirs among the ranks of the host, in that case
  // Null where there are no communication threads: jobs are then carried out by who waits for them.
  std::shared_ptr<comm::CommThread> gather_thread;
  std::shared_ptr<comm::CommThread> reduce_thread;

  static comm::Completion post(const std::shared_ptr<comm::CommThread>& thread, comm::Job job) {
    return thread ? thread->post(std::move(job)) : comm::defer(std::move(job));
  }
};

// Bytes that one of `comm`'s ranks receives when a buffer of `bytes` is gathered or reduce-scattered.
inline int64_t received_bytes(int64_t bytes, const comm::Comm& comm) { return bytes / comm.size() * (comm.size() - 1); }

}  // namespace fsdp
