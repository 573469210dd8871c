#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/comm/host/shared_arena.h"
#include "fsdp/comm/host/unix_socket.h"
#include "fsdp/comm/secret/job_secret.h"

namespace fsdp::comm {

struct HandshakeOptions {
  std::chrono::milliseconds start_deadline;  // for all to begin
  std::chrono::milliseconds deadline;        // for all to reach each other after that
  JobSecret secret;
  std::string no_arena;  // why this rank has none, if it has none
};

// Another rank: the memory it shares, and a connection on which nothing is sent, whose end tells of the rank's.
struct HostPeer {
  FileDescriptor socket;
  SharedMapping arena;
};

struct HandshakeOutcome {
  std::optional<std::vector<HostPeer>> peers;  // one for each rank, this rank's own empty
  std::string obstacle;                        // why there are none, as the rank tells that told it first
};

// Exchanges the arenas of all ranks; `own` is null if this rank has none. Being reached over a socket that exists on
// this host only is the proof that ranks share it, which host names are not. Both sides of a socket must run under this
// process's user, and each proves the secret of the job, over the names of both sockets and both arenas, which are
// random, before its arena is mapped. Whether there are peers is on every rank the same, agreed through `store`.
// COLLECTIVE.
HandshakeOutcome shake_hands(c10d::Store& store, int rank, int size, const SharedArena* own,
                             const HandshakeOptions& options);

}  // namespace fsdp::comm
