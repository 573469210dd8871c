#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/comm/rendezvous/launch_environment.h"
#include "fsdp/comm/secret/job_secret.h"
#include "fsdp/comm/store/store_server.h"

namespace fsdp::comm {

// Connects to the store of the job that `env` describes; rank 0 of a launcher without a store hosts it. Keys are
// private to the attempt. A store that rank 0 hosts listens on 127.0.0.1 alone where the job stays on one host, else on
// every address; it tells of refused connections by give_advice(). Where an agent hosts c10d's store, which asks nobody
// for a proof, a job with a secret uses it for one thing: rank 0 hosts a store of its own and writes down there, proven
// by the secret, where that is.
// Throws Error(kCommunication): port in use, nobody answers by the deadline, or what answers is not the job's;
// Error(kUsage) that names the rank: it has another secret than the store, or one of the two has none.
c10::intrusive_ptr<c10d::Store> open_store(const LaunchEnvironment& env, std::chrono::milliseconds deadline,
                                           const JobSecret& secret = {});

// Whose end takes the store of open_store() along.
StoreHost store_host_of(const LaunchEnvironment& env, const JobSecret& secret);

// Where other ranks reach this one: 127.0.0.1 in a job that stays on one host, else this host's address on the route to
// the store.
std::string own_address(const LaunchEnvironment& env);

// Values of a store are bytes; ours are text.
inline std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
inline std::string to_text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace fsdp::comm
