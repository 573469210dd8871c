#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "fsdp/comm/transport/transport_kind.h"
#include "fsdp/mesh/mesh.h"

namespace fsdp {

// What becomes of host memory that tensors free: kept for the next ones (fsdp/memory/host_cache.h), or given back to
// the C library.
enum class HostMemory { kCached, kSystem };

struct InitOptions {
  // No wait for another rank lasts longer; then an error names the ranks that are missing.
  std::chrono::milliseconds deadline = std::chrono::minutes(5);
  // For the first meeting of all ranks.
  std::chrono::milliseconds start_deadline = std::chrono::minutes(2);
  // A rank whose process gives no sign of life for this long is lost: all ranks give up with an error that names it.
  // 0: never. Unset: what the variable FSDP_HEARTBEAT_SECONDS says; without it, 15 s. Debuggers stop processes too.
  std::optional<std::chrono::milliseconds> heartbeat_timeout = {};
  // Whatever must be the same on all ranks, such as a hash of the program's configuration.
  std::string settings = {};
  // Where the log of the last 256 collective calls is written when one fails: calls-rank<N>.jsonl. Empty: nowhere.
  std::string dump_folder = {};
  // Unset: what the variables FSDP_TRANSPORT (auto, shm, gloo) and FSDP_HOST_WEIGHTS (one, per_rank) say; without them,
  // shared memory between the ranks of a host, with one copy of the weights that are gathered there, and TCP between
  // hosts.
  std::optional<TransportKind> transport = {};
  // Unset: what the variable FSDP_DEVICE_TRANSPORT (auto, native, host) says; without it, auto.
  std::optional<DeviceTransportKind> device_transport = {};
  std::optional<HostWeightCopies> host_weights = {};
  // Unset: what the variable FSDP_HOST_MEMORY (cached, system) says; without it, cached. For the whole process.
  std::optional<HostMemory> host_memory = {};
};

// Joins the job this process was started in: `fsdp launch`, torchrun, plain env:// variables, Slurm's srun, Open MPI,
// MPICH / Intel MPI, or alone (a world of one, no sockets); the first complete set of variables wins, in that order.
// COLLECTIVE over all processes of the job. Call once, before any other use of fsdp. In a world of several ranks
// SIGPIPE is ignored from then on, unless the program handles it: a write to a rank that died must fail, not kill this
// one. Throws Error(kUsage) for an incomplete or contradictory environment, and if two processes claim to be one rank
// or a rank has another world size, build or settings (it is named); Error(kCommunication) if ranks are missing at the
// start deadline (they are named) or the port is taken.
World init(const InitOptions& options = {});

// Which launcher init() found, for messages: "fsdp launch", "torchrun", "srun", "mpirun", "alone", ...
std::string launcher_name();

// What carries the collectives of `world`: "shm", "gloo", "shm + gloo" (within hosts and between them), or "none" in a
// world of one.
std::string transport_name(const World& world);

}  // namespace fsdp
