#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "fsdp/comm/host/shared_arena.h"
#include "fsdp/comm/host/unix_socket.h"
#include "fsdp/comm/secret/job_secret.h"

namespace fsdp::comm {

struct HandshakeOptions {
  std::chrono::milliseconds start_deadline;  // for all to begin
  std::chrono::milliseconds deadline;        // for all to reach each other after that
  JobSecret secret;
};

// Another rank: the memory it shares, and a connection on which nothing is sent, whose end tells of the rank's.
struct HostPeer {
  FileDescriptor socket;
  SharedMapping arena;
};

// Exchanges the arenas of all ranks; `own` is null if this rank has none. Being reached over a socket that exists on
// this host only is the proof that ranks share it, which host names are not. Both sides of a socket must run under this
// process's user, and each proves the secret of the job, over the names of both sockets and both arenas, which are
// random, before its arena is mapped. Returns one entry for each rank, this
// rank's own empty, or nothing: on every rank the same, agreed through `store`. COLLECTIVE.
std::optional<std::vector<HostPeer>> shake_hands(c10d::Store& store, int rank, int size, const SharedArena* own,
                                                 const HandshakeOptions& options);

}  // namespace fsdp::comm
