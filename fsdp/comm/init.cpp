#include "fsdp/comm/init.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "fsdp/base/advice.h"
#include "fsdp/base/environment.h"
#include "fsdp/base/error.h"
#include "fsdp/base/fault_point.h"
#include "fsdp/comm/collectives.h"
#include "fsdp/comm/connection.h"
#include "fsdp/comm/rendezvous/launch_environment.h"
#include "fsdp/comm/rendezvous/nccl_settings.h"
#include "fsdp/comm/rendezvous/secret_source.h"
#include "fsdp/comm/rendezvous/store.h"
#include "fsdp/memory/host_cache.h"
#include "kernels/base/cpu_isa.h"

namespace fsdp {
namespace {

const char* get_environment(const char* name) { return std::getenv(name); }

std::chrono::milliseconds heartbeat_from_environment(std::chrono::milliseconds otherwise) {
  const char* text = std::getenv("FSDP_HEARTBEAT_SECONDS");
  if (text == nullptr || *text == 0) return otherwise;
  constexpr double kMost = 1e6;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  FSDP_CHECK(*end == 0 && seconds >= 0 && seconds <= kMost, "[init] FSDP_HEARTBEAT_SECONDS: got '", text,
             "', expected seconds, or 0 to switch the watch off.");
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

void advise_a_secret(const comm::LaunchEnvironment& env) {
  give_advice({"job secret", c10::str("this job has no secret: whoever reaches port ", env.store_port, " of ",
                                      env.store_host, " can take part in it. Set FSDP_JOB_SECRET or ",
                                      "FSDP_JOB_SECRET_FILE to the same on all ranks (docs/clusters.md); if all ranks ",
                                      "are on this host, MASTER_ADDR=127.0.0.1 is enough.")});
}

}  // namespace

World init(const InitOptions& options) {
  if (const auto mistake = kernels::cpu_isa_mistake()) throw Error(ErrorCode::kUsage, *mistake);
  const HostMemory host_memory = options.host_memory.value_or(choice_of<HostMemory>(
      "FSDP_HOST_MEMORY", {{"cached", HostMemory::kCached}, {"system", HostMemory::kSystem}}, HostMemory::kCached));
  if (host_memory == HostMemory::kCached) enable_host_cache();
  const comm::LaunchEnvironment env = comm::read_launch_environment(get_environment);
  faults::arm(env.rank);
  if (env.size == 1) return comm::connect_alone();
  comm::set_nccl_defaults(options.dump_folder);
  comm::ConnectOptions connect_options;
  connect_options.deadline = options.deadline;
  connect_options.start_deadline = options.start_deadline;
  connect_options.heartbeat_timeout =
      options.heartbeat_timeout.value_or(heartbeat_from_environment(connect_options.heartbeat_timeout));
  connect_options.secret = comm::take_job_secret();
  connect_options.store_host = comm::store_host_of(env, connect_options.secret);
  connect_options.settings = options.settings;
  connect_options.dump_folder = options.dump_folder;
  connect_options.transport = options.transport.value_or(choice_of<TransportKind>(
      "FSDP_TRANSPORT", {{"auto", TransportKind::kAuto}, {"shm", TransportKind::kShm}, {"gloo", TransportKind::kGloo}},
      TransportKind::kAuto));
  connect_options.device_transport =
      options.device_transport.value_or(choice_of<DeviceTransportKind>("FSDP_DEVICE_TRANSPORT",
                                                                       {{"auto", DeviceTransportKind::kAuto},
                                                                        {"native", DeviceTransportKind::kNative},
                                                                        {"host", DeviceTransportKind::kHost}},
                                                                       DeviceTransportKind::kAuto));
  connect_options.host_weights = options.host_weights.value_or(choice_of<HostWeightCopies>(
      "FSDP_HOST_WEIGHTS", {{"one", HostWeightCopies::kOne}, {"per_rank", HostWeightCopies::kPerRank}},
      HostWeightCopies::kOne));
  connect_options.host = comm::own_address(env);
  if (env.rank == 0 && !env.stays_on_host() && !connect_options.secret.is_given()) advise_a_secret(env);
  World world = comm::connect(comm::open_store(env, options.start_deadline, connect_options.secret), env.rank, env.size,
                              connect_options);
  if (env.local_rank && env.local_size) {
    world.local_rank = *env.local_rank;
    world.local_size = *env.local_size;
  } else {
    const std::vector<int> here = ranks_of_this_host(world);
    world.local_rank = static_cast<int>(std::find(here.begin(), here.end(), world.rank) - here.begin());
    world.local_size = static_cast<int>(here.size());
  }
  return world;
}

std::string transport_name(const World& world) { return world.connection->transport_name(); }

std::string launcher_name() { return comm::read_launch_environment(get_environment).launcher; }

}  // namespace fsdp
