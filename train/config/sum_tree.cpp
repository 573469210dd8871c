#include "train/config/sum_tree.h"

#include <algorithm>
#include <string>
#include <vector>

#include "fsdp/base/error.h"

namespace fsdp::train {
namespace {

// Of `leaves` microbatches, over `ranks` ranks that they and the replicas come out even on.
SumTreeOrder order_on(const Config& config, int64_t leaves, int64_t ranks) {
  const int64_t replicas = config.shard.replicas;
  return {parse_strategy(config.shard.strategy), ranks / replicas, replicas, leaves / ranks};
}

// "1, 2 or 4"
std::string exact_worlds(const Config& config, int64_t leaves) {
  std::vector<std::string> numbers;
  for (int64_t ranks = config.shard.replicas; ranks <= leaves; ranks += config.shard.replicas) {
    if (leaves % ranks == 0 && order_on(config, leaves, ranks).is_exact()) numbers.push_back(std::to_string(ranks));
  }
  std::string text;
  for (size_t i = 0; i < numbers.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == numbers.size() ? " or " : ", ") + numbers[i];
  }
  return text.empty() ? "none with these replicas" : text;
}

}  // namespace

SumOrder sum_order(const TrainConfig& config) {
  return config.world_invariant ? SumOrder::kTree : SumOrder::kAsTheyCome;
}

int64_t microbatch_sequences(const TrainConfig& config, int64_t ranks) {
  if (config.microbatch_sequences > 0) return config.microbatch_sequences;
  return config.world_invariant ? 1 : config.batch_sequences / ranks;
}

std::optional<SumTreeOrder> sum_tree_of(const Config& config, int64_t ranks) {
  if (!config.train.world_invariant) return std::nullopt;
  if (config.mesh.pp > 1 || config.mesh.tp > 1 || config.mesh.cp > 1) {
    throw Error(ErrorCode::kUsage,
                "[train] train.world_invariant: got it with mesh.pp=" + std::to_string(config.mesh.pp) +
                    ", mesh.tp=" + std::to_string(config.mesh.tp) + " and mesh.cp=" + std::to_string(config.mesh.cp) +
                    ", which add up in an order of their own, expected 1 of each. "
                    "Leave one of them out.");
  }
  const int64_t leaves = config.train.batch_sequences / microbatch_sequences(config.train, ranks);
  if (ranks % config.shard.replicas == 0) {
    const SumTreeOrder order = order_on(config, leaves, ranks);
    if (order.is_exact()) return order;
  }
  throw Error(ErrorCode::kUsage,
              "[train] train.world_invariant: got " + std::to_string(ranks) + " rank(s) for " + std::to_string(leaves) +
                  " microbatches of a step, expected " + exact_worlds(config, leaves) +
                  ": with so many shard.strategy=" + config.shard.strategy +
                  " adds up as one rank does. Change the number of ranks, or make train.batch_sequences / "
                  "train.microbatch_sequences a power of two.");
}

}  // namespace fsdp::train
