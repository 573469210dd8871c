#include "fsdp/comm/store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fsdp/base/check.h"

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

c10::intrusive_ptr<c10d::Store> open_store(const LaunchEnvironment& env, std::chrono::milliseconds deadline) {
  c10d::TCPStoreOptions options;
  options.port = env.store_port;
  options.isServer = env.rank == 0 && env.hosted_by == StoreHost::kRankZero;
  options.waitWorkers = false;
  options.timeout = deadline;
  options.multiTenant = false;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(env.store_host, options);
    return c10::make_intrusive<c10d::PrefixStore>("fsdp/" + env.attempt, std::move(store));
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const std::string place = env.store_host + ":" + std::to_string(env.store_port);
    if (text.find("EADDRINUSE") != std::string::npos || text.find("already in use") != std::string::npos) {
      FSDP_THROW(kCommunication, "[init] port ", env.store_port, " of ", env.store_host,
                 " is in use by another program. Set MASTER_PORT to a free port, or start with `fsdp launch`, which "
                 "finds one.");
    }
    FSDP_THROW(kCommunication, "[init] rank ", env.rank, " of ", env.size, " (", env.launcher,
               ") cannot reach the store at ", place, " within ", deadline.count() / 1000,
               " s: ", text.substr(0, text.find('\n')),
               ". Check that rank 0 runs and that MASTER_ADDR and MASTER_PORT name it.");
  }
}

}  // namespace fsdp::comm
