#include "fsdp/comm/rendezvous/store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "fsdp/base/advice.h"
#include "fsdp/base/check.h"
#include "fsdp/comm/rendezvous/agent_store.h"
#include "fsdp/comm/store/sockets.h"
#include "fsdp/comm/store/store_client.h"

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;

constexpr const char* kThisHostAddress = "127.0.0.1";

[[noreturn]] void throw_not_hosted(const LaunchEnvironment& env, int error) {
  if (error == EADDRINUSE) {
    FSDP_THROW(kCommunication, "[init] port ", env.store_port, " of ", env.store_host,
               " is in use by another program. Set MASTER_PORT to a free port, or start with `fsdp launch`, which "
               "finds one.");
  }
  FSDP_THROW(kCommunication, "[init] ", describe_rank(env), " cannot host the store of the job at port ",
             env.store_port, ": ", std::strerror(error), ". Set MASTER_PORT to another port.");
}

// Port 0: one of the system's choice.
std::shared_ptr<StoreServer> host_store(const LaunchEnvironment& env, uint16_t port, const JobSecret& secret) {
  Socket listener = listen_on(env.stays_on_host() ? Reach::kThisHost : Reach::kAllHosts, port);
  if (!listener.descriptor) throw_not_hosted(env, listener.error);
  StoreServerOptions options;
  options.secret = secret;
  options.on_refusal = [](const std::string& text) { give_advice({"strangers", text}); };
  return std::make_shared<StoreServer>(std::move(listener.descriptor), std::move(options));
}

c10::intrusive_ptr<c10d::Store> connect_to_store(const LaunchEnvironment& env, StoreAddress address) {
  auto client = c10::make_intrusive<StoreClient>(std::move(address));
  return c10::make_intrusive<c10d::PrefixStore>("fsdp/" + env.attempt, std::move(client));
}

c10::intrusive_ptr<c10d::Store> open_agent_store(const LaunchEnvironment& env, milliseconds deadline,
                                                 const JobSecret& secret) {
  AgentStore agent(env, deadline);
  std::optional<StoreAddress> address;
  if (env.rank != 0) {
    address = agent.find(secret);
  } else if (secret.is_given()) {
    auto server = host_store(env, 0, secret);
    address =
        StoreAddress{own_address(env), server->port(), secret, 0, describe_rank(env), deadline, std::move(server)};
  }
  if (env.rank == 0) agent.publish(address, secret);
  return address ? connect_to_store(env, std::move(*address)) : agent.store();
}

}  // namespace

std::string own_address(const LaunchEnvironment& env) {
  return env.stays_on_host() ? kThisHostAddress : address_towards(env.store_host, env.store_port);
}

StoreHost store_host_of(const LaunchEnvironment& env, const JobSecret& secret) {
  return env.hosted_by == StoreHost::kAgent && secret.is_given() ? StoreHost::kRankZero : env.hosted_by;
}

c10::intrusive_ptr<c10d::Store> open_store(const LaunchEnvironment& env, milliseconds deadline,
                                           const JobSecret& secret) {
  if (env.hosted_by == StoreHost::kAgent) return open_agent_store(env, deadline, secret);
  StoreAddress address{env.store_host, env.store_port, secret, env.rank, describe_rank(env), deadline, nullptr};
  // Nothing listens elsewhere.
  if (env.stays_on_host()) address.host = kThisHostAddress;
  if (env.rank == 0 && env.hosted_by == StoreHost::kRankZero) {
    address.hosted = host_store(env, env.store_port, secret);
    address.host = kThisHostAddress;
  }
  return connect_to_store(env, std::move(address));
}

}  // namespace fsdp::comm
