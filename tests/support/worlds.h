// The ranks and strategies that what is promised holds on.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "fsdp/strategy/strategy.h"
#include "fsdp/unit/options.h"
#include "tests/support/ranks.h"

namespace fsdp::testing {

// Those that need no replicas.
inline constexpr Strategy kFlatStrategies[] = {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads,
                                               Strategy::kOptimGradsParams};

// On 1, 2 and 3 ranks.
inline void for_worlds(const std::function<void(const World&)>& body) {
  for (const int size : {1, 2, 3}) {
    SCOPED_TRACE(::testing::Message() << "world " << size);
    run_ranks(size, body);
  }
}

// With those strategies, and what else `options` say.
inline void for_strategies(const std::function<void(const World&, const ShardOptions&)>& body,
                           ShardOptions options = {}) {
  for (const Strategy strategy : kFlatStrategies) {
    SCOPED_TRACE(name(strategy));
    options.strategy = strategy;
    for_worlds([&](const World& world) { body(world, options); });
  }
}

}  // namespace fsdp::testing
