#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/comm/rendezvous/launch_environment.h"

namespace fsdp::comm {

// The key-value store through which ranks find each other, hosted in this process on a port of the system's choice.
// A launcher keeps one alive and starts its children with MASTER_ADDR=127.0.0.1, MASTER_PORT=port() and
// TORCHELASTIC_USE_AGENT_STORE=True, so that no port is ever guessed and no rank's death takes the store away. Other
// hosts cannot reach it.
class StoreServer {
 public:
  StoreServer();  // throws Error(kCommunication) if no port can be had
  uint16_t port() const;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

// Connects to (or, for rank 0 of a launcher without a store, hosts) the store of `env`. Keys are private to the
// attempt. Where all ranks are on one host, or MASTER_ADDR is a loopback address, it listens on 127.0.0.1 alone.
// Throws Error(kCommunication): port in use, or nobody answers by the deadline.
c10::intrusive_ptr<c10d::Store> open_store(const LaunchEnvironment& env, std::chrono::milliseconds deadline);

// Values of a store are bytes; ours are text.
inline std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
inline std::string to_text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace fsdp::comm
