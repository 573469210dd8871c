#include "fsdp/comm/init.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "fsdp/base/environment.h"
#include "fsdp/base/error.h"
#include "fsdp/base/fault_point.h"
#include "fsdp/comm/collectives.h"
#include "fsdp/comm/connection.h"
#include "fsdp/comm/rendezvous/launch_environment.h"
#include "fsdp/comm/rendezvous/nccl_settings.h"
#include "fsdp/comm/rendezvous/store.h"
#include "fsdp/memory/host_cache.h"
#include "kernels/base/cpu_isa.h"

namespace fsdp {
namespace {

const char* get_environment(const char* name) { return std::getenv(name); }

// The address of this host on the route to `target`: a datagram socket's connect() sends nothing and tells it. Host
// names often resolve to 127.0.1.1, which no other host reaches.
std::string address_towards(const std::string& target, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(target.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return "127.0.0.1";
  std::string address = "127.0.0.1";
  for (const addrinfo* item = found; item != nullptr; item = item->ai_next) {
    const int fd = socket(item->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage local{};
    socklen_t size = sizeof(local);
    std::array<char, NI_MAXHOST> text{};
    const bool known = connect(fd, item->ai_addr, item->ai_addrlen) == 0 &&
                       getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0 &&
                       getnameinfo(reinterpret_cast<sockaddr*>(&local), size, text.data(), text.size(), nullptr, 0,
                                   NI_NUMERICHOST) == 0;
    close(fd);
    if (known) {
      address = text.data();
      break;
    }
  }
  freeaddrinfo(found);
  return address;
}

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
  connect_options.store_host = env.hosted_by;
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
  connect_options.host = address_towards(env.store_host, env.store_port);
  World world = comm::connect(comm::open_store(env, options.start_deadline), env.rank, env.size, connect_options);
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
