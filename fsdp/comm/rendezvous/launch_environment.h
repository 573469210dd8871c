#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace fsdp::comm {

// Who hosts the key-value store at host:port: rank 0, the launcher (`fsdp launch`), or an agent that hosts c10d's own
// store (torchrun, and who else sets TORCHELASTIC_USE_AGENT_STORE).
enum class StoreHost { kRankZero, kLauncher, kAgent };

// What a launcher told this process.
struct LaunchEnvironment {
  std::string launcher;  // "fsdp launch", "torchrun", "env://", "srun", "Open MPI", "MPICH", "alone"
  int rank = 0;
  int size = 1;
  std::optional<int> local_rank;  // unset: found out from host names at the first meeting
  std::optional<int> local_size;
  std::string store_host = "127.0.0.1";  // of rank 0's store in a job that stays on one host: always this
  uint16_t store_port = 0;
  StoreHost hosted_by = StoreHost::kRankZero;
  std::string attempt = "0";  // restart count; keys of one attempt do not meet those of another

  // Whether all ranks are known to run on this host, so that nothing of the job need be reached from another.
  bool stays_on_host() const;
};

// "rank 3 of 8 (srun)".
std::string describe_rank(const LaunchEnvironment& env);

using GetVariable = std::function<const char*(const char*)>;

// Reads the environment of, in this order: `fsdp launch`, torchrun, plain env:// (RANK, WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT), Slurm's srun, Open MPI, MPICH / Intel MPI; else a world of one. Pure: reads through `get` only.
// Throws Error(kUsage) that names the variable that is missing, malformed or contradictory.
LaunchEnvironment read_launch_environment(const GetVariable& get);

// First host of a Slurm node list: "node[07-09,12],x3" -> "node07".
std::string first_slurm_host(const std::string& node_list);

}  // namespace fsdp::comm
