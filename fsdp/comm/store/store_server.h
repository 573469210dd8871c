#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

#include "fsdp/base/file_descriptor.h"
#include "fsdp/comm/secret/job_secret.h"
#include "fsdp/comm/store/refusal_log.h"
#include "fsdp/comm/store/sockets.h"

namespace fsdp::comm {

// What a store bears from connections that have not proven anything yet.
struct StrangerLimits {
  // Where one more comes, the one that waits longest is closed: ranks prove themselves in one round trip.
  int most = 128;
  // To say who it is.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
};

struct StoreServerOptions {
  JobSecret secret;
  StrangerLimits strangers;
  // Hears of refused connections, on the thread of the store.
  RefusalLog::Listener on_refusal;
};

// The key-value store through which ranks find each other, on a thread of its own. Unlike c10d's, it lets nobody in who
// does not prove the secret of the job (greeting.h), and can listen on 127.0.0.1 alone. A stranger costs it a
// descriptor and 80 bytes for a while. Who is let in is a rank, and believed: keys and values are not counted.
// Connections of ranks stay open, so the limit of open files (ulimit -n) bounds the number of ranks to a third of it.
//
// A launcher keeps one alive and starts its children with MASTER_ADDR=127.0.0.1 and MASTER_PORT=port(), so that no port
// is ever guessed and no rank's death takes the store away.
class StoreServer {
 public:
  // On 127.0.0.1, at a port of the system's choice. Throws Error(kCommunication) if it cannot be had.
  static FileDescriptor listen();
  explicit StoreServer(StoreServerOptions options = {});
  // At `listener`, which listen() or listen_on() made. Those who connect before are served then.
  StoreServer(FileDescriptor listener, StoreServerOptions options);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  uint16_t port() const { return port_; }

 private:
  class Loop;
  void start(FileDescriptor listener, StoreServerOptions options);

  uint16_t port_ = 0;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace fsdp::comm
