#pragma once

#include <memory>

#include "fsdp/comm/host/hosts.h"
#include "fsdp/comm/host/shm_transport.h"
#include "fsdp/comm/transport/transport.h"

namespace fsdp::comm {

// Ranks of several hosts with several ranks each: what can go through a host's memory does, and each byte crosses the
// network once for a host rather than once for a rank.
//   all-gather      ranks of one place gather over the network, then each host's ranks read each other's
//   reduce-scatter  each host's ranks add up among themselves, then the ranks of one place add up the hosts' sums
// So a sum is one of hosts' sums, in the order of hosts; within a host in the order of ranks. All ranks have the same
// bits; they may differ from those of make_gloo_transport(), which adds ranks one by one.
//   here: this host's ranks. across: the ranks of this one's place. Group of here x across ranks; COLLECTIVE over them.
std::unique_ptr<Transport> make_two_level_transport(HostGrid grid, std::shared_ptr<HostLinks> links,
                                                    std::unique_ptr<BlockTransport> here,
                                                    std::unique_ptr<Transport> across);

}  // namespace fsdp::comm
