#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <optional>

#include "fsdp/comm/rendezvous/launch_environment.h"
#include "fsdp/comm/secret/job_secret.h"
#include "fsdp/comm/store/store_client.h"

namespace fsdp::comm {

// c10d's own store, which the agent of another launcher (torchrun) hosts. It asks nobody for a proof, so a job with a
// secret uses it for no more than to find the store that rank 0 hosts.
class AgentStore {
 public:
  // Connects. Throws Error(kCommunication) if nobody answers by the deadline.
  AgentStore(const LaunchEnvironment& env, std::chrono::milliseconds deadline);

  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }

  // Rank 0: says where its own store is, with a proof; or, without one, that there is none, so that ranks of which only
  // some have a secret find out.
  void publish(const std::optional<StoreAddress>& own, const JobSecret& secret);
  // The others: where that is; nothing if no rank has a secret. Throws Error(kUsage) that names this rank if it has a
  // secret and rank 0 has none or another, or the other way round; Error(kCommunication) if rank 0 does not say by the
  // deadline.
  std::optional<StoreAddress> find(const JobSecret& secret);

 private:
  Proof proof_of(const JobSecret& secret, const std::string& host, const std::string& port) const;

  const LaunchEnvironment& env_;
  std::chrono::milliseconds deadline_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace fsdp::comm
