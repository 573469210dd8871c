#include "fsdp/comm/rendezvous/store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fsdp/base/check.h"
#include "fsdp/comm/rendezvous/port_wait.h"

namespace fsdp::comm {

StoreServer::StoreServer() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  try {
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  } catch (const std::exception& error) {
    FSDP_THROW(kCommunication, "[launch] cannot host the store of the job on 127.0.0.1: ", error.what());
  }
}

uint16_t StoreServer::port() const { return static_cast<c10d::TCPStore&>(*store_).getPort(); }

namespace {

[[noreturn]] void throw_unreachable(const LaunchEnvironment& env, std::chrono::milliseconds deadline,
                                    const std::string& reason) {
  FSDP_THROW(kCommunication, "[init] rank ", env.rank, " of ", env.size, " (", env.launcher,
             ") cannot reach the store at ", env.store_host, ":", env.store_port, " within ",
             std::chrono::duration<double>(deadline).count(), " s: ", reason.substr(0, reason.find('\n')),
             ". Check that rank 0 runs (and has not ended already), and that MASTER_ADDR and MASTER_PORT name it.");
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const LaunchEnvironment& env, std::chrono::milliseconds deadline) {
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
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(env.store_host, options);
    return c10::make_intrusive<c10d::PrefixStore>("fsdp/" + env.attempt, std::move(store));
  } catch (const std::exception& error) {
    const std::string text = error.what();
    if (text.find("EADDRINUSE") != std::string::npos || text.find("already in use") != std::string::npos) {
      FSDP_THROW(kCommunication, "[init] port ", env.store_port, " of ", env.store_host,
                 " is in use by another program. Set MASTER_PORT to a free port, or start with `fsdp launch`, which "
                 "finds one.");
    }
    throw_unreachable(env, deadline, text);
  }
}

}  // namespace fsdp::comm
