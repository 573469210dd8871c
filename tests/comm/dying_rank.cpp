// One of three processes; usage: dying_rank RANK PORT. Ranks 0 and 1 wait for rank 2, which ends as a killed process
// does. They stay until both have failed, so that neither is taken for the one that died, and print how long it took
// and what the error said.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "fsdp/base/error.h"
#include "fsdp/comm/collectives.h"
#include "fsdp/comm/connection.h"
#include "fsdp/comm/rendezvous/launch_environment.h"
#include "fsdp/comm/rendezvous/store.h"

int main(int, char** arguments) {
  using Clock = std::chrono::steady_clock;
  fsdp::comm::LaunchEnvironment env;
  env.launcher = "test";
  env.rank = std::stoi(arguments[1]);
  env.size = 3;
  env.store_port = static_cast<uint16_t>(std::stoi(arguments[2]));
  env.hosted_by = fsdp::comm::StoreHost::kLauncher;
  const auto store = fsdp::comm::open_store(env, std::chrono::seconds(60));
  fsdp::comm::ConnectOptions options;
  options.deadline = std::chrono::seconds(60);
  const fsdp::World world = fsdp::comm::connect(store, env.rank, env.size, options);
  fsdp::barrier(world, "start");
  if (env.rank == 2) _exit(1);
  const auto begin = Clock::now();
  std::string text = "no error";
  try {
    fsdp::barrier(world, "after the death");
  } catch (const fsdp::Error& error) {
    text = error.what();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  store->set("failed/" + std::to_string(env.rank), std::vector<uint8_t>{1});
  store->wait({"failed/" + std::to_string(1 - env.rank)}, std::chrono::seconds(30));
  std::printf("RESULT %.1f %s\n", seconds, text.c_str());
}
