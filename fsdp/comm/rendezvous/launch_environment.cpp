#include "fsdp/comm/rendezvous/launch_environment.h"

#include <cstring>

#include "fsdp/base/check.h"
#include "fsdp/base/number_text.h"

namespace fsdp::comm {
namespace {

constexpr const char* kThisHost = "127.0.0.1";

// Typed access to the variables of one launcher, with errors that name them.
class Variables {
 public:
  Variables(const GetVariable& get, std::string launcher) : get_(get), launcher_(std::move(launcher)) {}

  bool has(const char* name) const { return text(name).has_value(); }

  std::optional<std::string> text(const char* name) const {
    const char* value = get_(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  }

  std::string require_text(const char* name) const {
    const auto value = text(name);
    FSDP_CHECK(value.has_value(), "[init] this looks like a process of ", launcher_, ", but ", name,
               " is not set. Set it, or unset the launcher's other variables to run alone.");
    return *value;
  }

  std::optional<int> number(const char* name) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    const auto result = parse_integer<int>(*value);
    FSDP_CHECK(result && *result >= 0, "[init] ", name, ": got '", *value, "', expected a number from 0 on.");
    return result;
  }

  int require_number(const char* name) const {
    require_text(name);
    return *number(name);
  }

 private:
  const GetVariable& get_;
  std::string launcher_;
};

uint16_t to_port(int value, const char* name) {
  FSDP_CHECK(value > 0 && value < 65536, "[init] ", name, ": got ", value, ", expected a port from 1 to 65535.");
  return static_cast<uint16_t>(value);
}

void check_rank(const LaunchEnvironment& env) {
  FSDP_CHECK(env.size > 0 && env.rank < env.size, "[init] ", env.launcher, " says rank ", env.rank, " of ", env.size,
             ". Ranks must be below the world size.");
  const int local_size = env.local_size.value_or(env.size);
  FSDP_CHECK(local_size <= env.size && env.local_rank.value_or(0) < local_size, "[init] ", env.launcher,
             " says local rank ", env.local_rank.value_or(0), " of ", local_size, " in a world of ", env.size,
             ". Local ranks must be below the local size, and that at most the world size.");
}

LaunchEnvironment read_torch_names(const Variables& vars, std::string launcher) {
  LaunchEnvironment env;
  env.launcher = std::move(launcher);
  env.rank = vars.require_number("RANK");
  env.size = vars.require_number("WORLD_SIZE");
  env.local_rank = vars.number("LOCAL_RANK");
  env.local_size = vars.number("LOCAL_WORLD_SIZE");
  env.store_host = vars.require_text("MASTER_ADDR");
  env.store_port = to_port(vars.require_number("MASTER_PORT"), "MASTER_PORT");
  if (vars.text("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True") env.hosted_by = StoreHost::kAgent;
  env.attempt = vars.text("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return env;
}

// Legacy job operators export RANK per node; taking it for a process rank would start a wrong, smaller world.
void check_not_per_node(const Variables& vars) {
  const int per_node = vars.number("NPROC_PER_NODE").value_or(vars.number("PET_NPROC_PER_NODE").value_or(1));
  FSDP_CHECK(vars.has("LOCAL_RANK") || per_node <= 1, "[init] RANK and WORLD_SIZE are set without LOCAL_RANK, and ",
             per_node,
             " processes per node are announced: these count nodes, not processes. Start through `fsdp launch`.");
}

LaunchEnvironment read_slurm(const Variables& vars) {
  LaunchEnvironment env;
  env.launcher = "srun";
  env.rank = vars.require_number("SLURM_PROCID");
  env.size = vars.number("SLURM_STEP_NUM_TASKS").value_or(vars.number("SLURM_NTASKS").value_or(1));
  env.local_rank = vars.number("SLURM_LOCALID");
  if (vars.number("SLURM_STEP_NUM_NODES") == 1) env.local_size = env.size;
  const auto nodes = vars.text("SLURM_STEP_NODELIST");
  env.store_host = vars.text("MASTER_ADDR").value_or(nodes ? first_slurm_host(*nodes) : "127.0.0.1");
  const int job = vars.number("SLURM_JOB_ID").value_or(0);
  const int step = vars.number("SLURM_STEP_ID").value_or(0);
  // Any port that all tasks of the step compute alike, and that two steps of one job do not share.
  env.store_port =
      to_port(vars.number("MASTER_PORT").value_or(15000 + (job % 10000 + 131 * step) % 10000), "MASTER_PORT");
  env.attempt = vars.text("SLURM_RESTART_COUNT").value_or("0");
  return env;
}

LaunchEnvironment read_mpi(const Variables& vars, LaunchEnvironment env) {
  FSDP_CHECK(env.size == 1 || (vars.has("MASTER_ADDR") && vars.has("MASTER_PORT")), "[init] ", env.launcher,
             " started ", env.size,
             " ranks, but MASTER_ADDR and MASTER_PORT are not set. Pass a host that all ranks reach and a free "
             "port: mpirun -x MASTER_ADDR=... -x MASTER_PORT=...");
  if (env.size > 1) {
    env.store_host = vars.require_text("MASTER_ADDR");
    env.store_port = to_port(vars.require_number("MASTER_PORT"), "MASTER_PORT");
  }
  return env;
}

LaunchEnvironment read_open_mpi(const Variables& vars) {
  LaunchEnvironment env;
  env.launcher = "Open MPI";
  env.rank = vars.require_number("OMPI_COMM_WORLD_RANK");
  env.size = vars.require_number("OMPI_COMM_WORLD_SIZE");
  env.local_rank = vars.number("OMPI_COMM_WORLD_LOCAL_RANK");
  env.local_size = vars.number("OMPI_COMM_WORLD_LOCAL_SIZE");
  return read_mpi(vars, std::move(env));
}

LaunchEnvironment read_mpich(const Variables& vars) {
  LaunchEnvironment env;
  env.launcher = "MPICH";
  env.rank = vars.require_number("PMI_RANK");
  env.size = vars.require_number("PMI_SIZE");
  env.local_rank = vars.number("MPI_LOCALRANKID");
  env.local_size = vars.number("MPI_LOCALNRANKS");
  return read_mpi(vars, std::move(env));
}

}  // namespace

LaunchEnvironment read_launch_environment(const GetVariable& get) {
  LaunchEnvironment env;
  if (Variables(get, "fsdp launch").has("FSDP_LAUNCH")) {
    env = read_torch_names(Variables(get, "fsdp launch"), "fsdp launch");
    env.hosted_by = StoreHost::kLauncher;
  } else if (Variables(get, "torchrun").has("TORCHELASTIC_RUN_ID")) {
    env = read_torch_names(Variables(get, "torchrun"), "torchrun");
  } else if (const Variables vars(get, "env://"); vars.has("RANK") || vars.has("WORLD_SIZE")) {
    check_not_per_node(vars);
    env = read_torch_names(vars, "env://");
  } else if (const Variables vars(get, "srun"); vars.has("SLURM_STEP_ID") && vars.has("SLURM_PROCID")) {
    env = read_slurm(vars);
  } else if (const Variables vars(get, "Open MPI"); vars.has("OMPI_COMM_WORLD_RANK")) {
    env = read_open_mpi(vars);
  } else if (const Variables vars(get, "MPICH"); vars.has("PMI_RANK")) {
    env = read_mpich(vars);
  } else {
    env.launcher = "alone";
    env.local_rank = 0;
    env.local_size = 1;
  }
  check_rank(env);
  if (env.stays_on_host() && env.hosted_by == StoreHost::kRankZero) env.store_host = kThisHost;
  return env;
}

std::string describe_rank(const LaunchEnvironment& env) {
  return "rank " + std::to_string(env.rank) + " of " + std::to_string(env.size) + " (" + env.launcher + ")";
}

bool LaunchEnvironment::stays_on_host() const {
  const bool is_named = store_host == "localhost" || store_host.starts_with("127.") || store_host == "::1";
  return is_named || local_size == size;
}

std::string first_slurm_host(const std::string& node_list) {
  const size_t bracket = node_list.find('[');
  const size_t comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) return node_list.substr(0, comma);
  const size_t end = node_list.find_first_of(",-]", bracket + 1);
  FSDP_CHECK(end != std::string::npos, "[init] SLURM_STEP_NODELIST: got '", node_list,
             "', expected a closing ']'. Set MASTER_ADDR instead.");
  const size_t close = node_list.find(']', end);
  FSDP_CHECK(close != std::string::npos, "[init] SLURM_STEP_NODELIST: got '", node_list,
             "', expected a closing ']'. Set MASTER_ADDR instead.");
  const std::string suffix = node_list.substr(close + 1, node_list.find(',', close) - close - 1);
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, end - bracket - 1) + suffix;
}

}  // namespace fsdp::comm
