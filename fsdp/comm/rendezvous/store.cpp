#include "fsdp/comm/rendezvous/store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fsdp/base/check.h"
#include "fsdp/comm/rendezvous/port_wait.h"

namespace fsdp::comm {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

// What c10d listens on is every address of the host, unless it is given a socket, which it closes in the end. Nothing
// but the error number where there is none.
struct LoopbackSocket {
  int descriptor = -1;
  int error = 0;
};

LoopbackSocket bind_to_loopback(uint16_t port) {
  LoopbackSocket result{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), 0};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int yes = 1;
  if (result.descriptor >= 0) setsockopt(result.descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (result.descriptor >= 0 && bind(result.descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    return result;
  }
  result.error = errno;
  if (result.descriptor >= 0) close(result.descriptor);
  result.descriptor = -1;
  return result;
}

// Whether no rank is on another host.
bool stays_on_host(const LaunchEnvironment& env) {
  const bool is_named = env.store_host == "localhost" || env.store_host.starts_with("127.");
  return is_named || (env.hosted_by == StoreHost::kRankZero && env.local_size == env.size);
}

}  // namespace

StoreServer::StoreServer() {
  const LoopbackSocket loopback = bind_to_loopback(0);
  if (loopback.descriptor < 0) {
    FSDP_THROW(kCommunication,
               "[launch] cannot host the store of the job on 127.0.0.1: ", std::strerror(loopback.error));
  }
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = loopback.descriptor;
  try {
    store_ = c10::make_intrusive<c10d::TCPStore>(kLoopback, options);
  } catch (const std::exception& error) {
    FSDP_THROW(kCommunication, "[launch] cannot host the store of the job on 127.0.0.1: ", error.what());
  }
}

uint16_t StoreServer::port() const { return static_cast<c10d::TCPStore&>(*store_).getPort(); }

namespace {

[[noreturn]] void throw_in_use(const LaunchEnvironment& env) {
  FSDP_THROW(kCommunication, "[init] port ", env.store_port, " of ", env.store_host,
             " is in use by another program. Set MASTER_PORT to a free port, or start with `fsdp launch`, which "
             "finds one.");
}

[[noreturn]] void throw_unreachable(const LaunchEnvironment& env, std::chrono::milliseconds deadline,
                                    const std::string& reason) {
  FSDP_THROW(kCommunication, "[init] rank ", env.rank, " of ", env.size, " (", env.launcher,
             ") cannot reach the store at ", env.store_host, ":", env.store_port, " within ",
             std::chrono::duration<double>(deadline).count(), " s: ", reason.substr(0, reason.find('\n')),
             ". Check that rank 0 runs (and has not ended already), and that MASTER_ADDR and MASTER_PORT name it.");
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const LaunchEnvironment& launched, std::chrono::milliseconds deadline) {
  LaunchEnvironment env = launched;
  const bool is_local = stays_on_host(env);
  if (is_local) env.store_host = kLoopback;
  const bool is_host = env.rank == 0 && env.hosted_by == StoreHost::kRankZero;
  if (!is_host) {
    const std::string failure = wait_for_port(env.store_host, env.store_port, deadline);
    if (!failure.empty()) throw_unreachable(env, deadline, failure);
  }
  c10d::TCPStoreOptions options;
  options.port = env.store_port;
  options.isServer = is_host;
  options.waitWorkers = false;
  options.timeout = deadline;
  options.multiTenant = false;
  if (is_host && is_local) {
    const LoopbackSocket loopback = bind_to_loopback(env.store_port);
    if (loopback.error == EADDRINUSE) throw_in_use(env);
    if (loopback.descriptor < 0) throw_unreachable(env, deadline, std::strerror(loopback.error));
    options.masterListenFd = loopback.descriptor;
  }
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(env.store_host, options);
    return c10::make_intrusive<c10d::PrefixStore>("fsdp/" + env.attempt, std::move(store));
  } catch (const std::exception& error) {
    const std::string text = error.what();
    if (text.find("EADDRINUSE") != std::string::npos || text.find("already in use") != std::string::npos)
      throw_in_use(env);
    throw_unreachable(env, deadline, text);
  }
}

}  // namespace fsdp::comm
