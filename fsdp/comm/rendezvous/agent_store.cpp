#include "fsdp/comm/rendezvous/agent_store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <sstream>
#include <string>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/lack_of_memory.h"
#include "fsdp/base/number_text.h"
#include "fsdp/comm/rendezvous/store.h"
#include "fsdp/comm/store/sockets.h"

namespace fsdp::comm {
namespace {

constexpr const char* kAddressKey = "store of rank 0";
constexpr const char* kNoAddress = "none";
constexpr const char* kSameSecret = " Start all ranks with the same FSDP_JOB_SECRET or FSDP_JOB_SECRET_FILE.";

std::string first_line_of(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

[[noreturn]] void throw_no_agent(const LaunchEnvironment& env, std::chrono::milliseconds deadline,
                                 const std::string& reason) {
  FSDP_THROW(kCommunication, "[init] ", describe_rank(env), " cannot reach the store of the launcher's agent at ",
             env.store_host, ":", env.store_port, " within ", std::chrono::duration<double>(deadline).count(),
             " s: ", reason, ". Check that the launcher runs, and that MASTER_ADDR and MASTER_PORT name it.");
}

}  // namespace

// c10d's client may take twice as long as it was told, and prints stack traces meanwhile: who listens is found out
// first.
AgentStore::AgentStore(const LaunchEnvironment& env, std::chrono::milliseconds deadline)
    : env_(env), deadline_(deadline) {
  const Attempted attempted = connect_within(env.store_host, env.store_port, deadline);
  if (!attempted.connection) throw_no_agent(env, deadline, attempted.failure);
  c10d::TCPStoreOptions options;
  options.port = env.store_port;
  options.isServer = false;
  options.waitWorkers = false;
  options.timeout = deadline;
  options.multiTenant = false;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(env.store_host, options);
    store_ = c10::make_intrusive<c10d::PrefixStore>("fsdp/" + env.attempt, std::move(store));
  } catch (const std::exception& error) {
    if (is_lack_of_memory(error)) throw;
    throw_no_agent(env, deadline, first_line_of(error));
  }
}

Proof AgentStore::proof_of(const JobSecret& secret, const std::string& host, const std::string& port) const {
  return secret.prove("address of the store", {env_.attempt, host, port});
}

void AgentStore::publish(const std::optional<StoreAddress>& own, const JobSecret& secret) {
  std::string text = kNoAddress;
  if (own) {
    const std::string port = std::to_string(own->port);
    text = own->host + " " + port + " " + to_hex(proof_of(secret, own->host, port));
  }
  store_->set(kAddressKey, to_bytes(text));
}

std::optional<StoreAddress> AgentStore::find(const JobSecret& secret) {
  std::string text;
  try {
    text = to_text(store_->get(kAddressKey));
  } catch (const std::exception& error) {
    if (is_lack_of_memory(error)) throw;
    FSDP_THROW(kCommunication, "[init] ", describe_rank(env_), ": rank 0 has not started within ",
               std::chrono::duration<double>(deadline_).count(), " s (", first_line_of(error),
               "). Start one process for each rank.");
  }
  const std::string prefix = c10::str("[init] ", describe_rank(env_), ": job secret: ");
  const bool has_address = text != kNoAddress;
  FSDP_CHECK(has_address || !secret.is_given(), prefix, "got one, but rank 0 says that it has none.", kSameSecret);
  FSDP_CHECK(!has_address || secret.is_given(), prefix, "got none, but rank 0 has one.", kSameSecret);
  if (!has_address) return std::nullopt;
  std::istringstream words(text);
  std::string host, port, proof;
  words >> host >> port >> proof;
  const auto number = parse_integer<uint16_t>(port);
  // Without a secret in it this comparison tells nobody anything: whoever asks can read the proof.
  FSDP_CHECK(number && proof == to_hex(proof_of(secret, host, port)), prefix,
             "where the launcher's store says that rank 0 is, is not proven by it.", kSameSecret,
             " If they are, somebody else writes to the store at ", env_.store_host, ":", env_.store_port, ".");
  return StoreAddress{host, *number, secret, env_.rank, describe_rank(env_), deadline_, nullptr};
}

}  // namespace fsdp::comm
