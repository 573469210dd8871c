#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "fsdp/comm/transport_kind.h"
#include "fsdp/mesh/mesh.h"

namespace fsdp {

// What the C library does with memory that tensors free. Keeping it saves first-touch page faults, which on a CPU cost
// several times more than the copies of a step.
enum class MallocPolicy { kKeepFreed, kSystemDefault };

struct InitOptions {
  // No wait for another rank lasts longer; then an error names the ranks that are missing.
  std::chrono::milliseconds deadline = std::chrono::minutes(5);
  // For the first meeting of all ranks.
  std::chrono::milliseconds start_deadline = std::chrono::minutes(2);
  // Where the log of the last 256 collective calls is written when one fails: calls-rank<N>.jsonl. Empty: nowhere.
  std::string dump_folder;
  // Unset: what the variables FSDP_TRANSPORT (auto, shm, gloo) and FSDP_HOST_WEIGHTS (one, per_rank) say; without them,
  // shared memory where all ranks run on one host, with one copy of gathered weights for all of them.
  std::optional<TransportKind> transport;
  std::optional<HostWeightCopies> host_weights;
  MallocPolicy malloc = MallocPolicy::kKeepFreed;
};

// Joins the job this process was started in: `fsdp launch`, torchrun, plain env:// variables, Slurm's srun, Open MPI,
// MPICH / Intel MPI, or alone (a world of one, no sockets); the first complete set of variables wins, in that order.
// COLLECTIVE over all processes of the job. Call once, before any other use of fsdp.
// Throws Error(kUsage) for an incomplete or contradictory environment, Error(kCommunication) if ranks are missing at
// the start deadline (they are named) or the port is taken.
World init(const InitOptions& options = {});

// Which launcher init() found, for messages: "fsdp launch", "torchrun", "srun", "mpirun", "alone", ...
std::string launcher_name();

// What carries the collectives of `world`: "shm", "gloo", or "none" in a world of one.
std::string transport_name(const World& world);

}  // namespace fsdp
