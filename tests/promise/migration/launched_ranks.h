// Two processes that find each other by the variables of a launcher.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "fsdp/comm/collectives.h"
#include "fsdp/comm/init.h"
#include "tests/support/rank_processes.h"

namespace fsdp::testing {

using Variables = std::map<std::string, std::string>;

// Each calls init() with these variables, and with those of torchrun.
inline void expect_init_joins(const Variables& more = {}) {
  constexpr int kSize = 2;
  RankProcesses processes(comm::StoreHost::kRankZero);
  for (int rank = 0; rank < kSize; ++rank) {
    Variables variables = {
        {"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(kSize)},
        {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(kSize)},
        {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(processes.store_port())}};
    variables.insert(more.begin(), more.end());
    processes.start(rank, [variables] {
      for (const char* name : {"FSDP_LAUNCH", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"}) unsetenv(name);
      for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
      const World world = init();
      const auto sum = sum_over_ranks(world, at::full({1}, world.rank + 1, at::kLong)).item<int64_t>();
      barrier(world, "end");
      RankResult result;
      result.text = std::to_string(world.rank) + " of " + std::to_string(world.local_size) + ": " + std::to_string(sum);
      return result;
    });
  }
  EXPECT_EQ(processes.result(0).text, "0 of 2: 3");
  EXPECT_EQ(processes.result(1).text, "1 of 2: 3");
}

}  // namespace fsdp::testing
