// bf16 compute with fp32 main weights, against its twin in one process (rounded_twin.h).
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/promise/models/rounded_twin.h"
#include "tests/support/ranks.h"
#include "tests/support/worlds.h"

namespace fsdp::precision_test {
namespace {

using testing::batch;
using testing::BlockModel;
using testing::expect_same_weights;
using testing::kFlatStrategies;
using testing::loss_of;
using testing::RoundedTwin;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

constexpr int kSteps = 6;
constexpr double kLearningRate = 0.02;

torch::Tensor bf16_batch(int step) { return batch(static_cast<uint64_t>(step)).to(torch::kBFloat16); }

// The twin: `master` ends up trained.
class Emulation : public RoundedTwin {
 public:
  explicit Emulation(int ranks) : RoundedTwin(torch::kBFloat16, ranks) {}

  template <class Optimizer>
  void step(int step, Optimizer& optimizer) {
    add_gradients(bf16_batch(step), loss_of);
    optimizer.step();
    optimizer.zero_grad();
  }
};

ShardOptions bf16_options(Strategy strategy) {
  ShardOptions options;
  options.strategy = strategy;
  options.precision = Precision::bf16();
  return options;
}

// The gathered weights are the rounded main weights, to the bit, at every step.
void expect_refreshed(const World& world, ShardedBlocks& sharded) {
  const FullParameters scope(sharded.blocks[1]);
  const torch::Tensor computed = sharded.module->block(1).up->weight.detach().clone();
  ASSERT_EQ(computed.scalar_type(), torch::kBFloat16);
  for (const auto& [name, leaf] : named_parameters(*sharded.module->layers[1])) {
    if (name != "up.weight") continue;
    const LocalRange range = local_range(leaf);
    EXPECT_TRUE(torch::equal(computed.flatten().slice(0, range.begin, range.end), leaf.detach().to(torch::kBFloat16)))
        << "rank " << world.rank;
  }
}

// Bound: gradients agree to the last bits of their fp32 sums; Adam's first steps, which are of size lr whatever the
// gradient's, can turn that into a small part of lr, and a weight that then rounds to the other bf16 neighbour adds a
// little.
template <class ShardedOptimizer, class PlainOptimizer>
void expect_parity(int ranks, double tolerance, const std::function<ShardedOptimizer(std::vector<torch::Tensor>)>& make,
                   const std::function<PlainOptimizer(std::vector<torch::Tensor>)>& make_plain) {
  for (const Strategy strategy : kFlatStrategies) {
    run_ranks(ranks, [&](const World& world) {
      SCOPED_TRACE(c10::str(name(strategy), ", rank ", world.rank, " of ", ranks));
      ShardedBlocks sharded = shard_blocks(world, bf16_options(strategy));
      Emulation emulation(ranks);
      ShardedOptimizer optimizer = make(parameters(*sharded.module));
      PlainOptimizer plain = make_plain(emulation.master().parameters());
      for (int step = 0; step < kSteps; ++step) {
        loss_of(*sharded.module, share_of(world, bf16_batch(step))).backward();
        optimizer.step();
        zero_grad(*sharded.module);
        emulation.step(step, plain);
        expect_refreshed(world, sharded);
      }
      expect_same_weights(*sharded.module, emulation.master(), tolerance);
    });
  }
}

using Tensors = std::vector<torch::Tensor>;

TEST(PrecisionBf16, FusedAdamWTrainsLikeTheEmulation) {
  for (const int ranks : {1, 2, 3}) {
    expect_parity<AdamW, torch::optim::AdamW>(
        ranks, 0.05 * kLearningRate,
        [](const Tensors& leaves) { return AdamW(leaves, {.lr = kLearningRate, .weight_decay = 0.1}); },
        [](const Tensors& weights) {
          return torch::optim::AdamW(weights, torch::optim::AdamWOptions(kLearningRate).weight_decay(0.1));
        });
  }
}

TEST(PrecisionBf16, FusedSGDTrainsLikeTheEmulation) {
  expect_parity<SGD, torch::optim::SGD>(
      2, 1e-4, [](const Tensors& leaves) { return SGD(leaves, {.lr = kLearningRate, .momentum = 0.9}); },
      [](const Tensors& weights) {
        return torch::optim::SGD(weights, torch::optim::SGDOptions(kLearningRate).momentum(0.9));
      });
}

// torch::optim::SGD writes through Tensor::data(), whose version counter is not the leaf's.
TEST(PrecisionBf16, TorchOptimizersRefreshTheWeightsToo) {
  expect_parity<torch::optim::SGD, torch::optim::SGD>(
      2, 1e-4, [](const Tensors& leaves) { return torch::optim::SGD(leaves, kLearningRate); },
      [](const Tensors& weights) { return torch::optim::SGD(weights, kLearningRate); });
  expect_parity<torch::optim::AdamW, torch::optim::AdamW>(
      2, 0.05 * kLearningRate, [](const Tensors& leaves) { return torch::optim::AdamW(leaves, kLearningRate); },
      [](const Tensors& weights) { return torch::optim::AdamW(weights, kLearningRate); });
}

TEST(PrecisionBf16, ModelComputesInBf16AndLeavesAreFp32) {
  for (const Strategy strategy : kFlatStrategies) {
    run_ranks(2, [&](const World& world) {
      ShardedBlocks sharded = shard_blocks(world, bf16_options(strategy));
      for (const torch::Tensor& parameter : sharded.module->parameters()) {
        EXPECT_EQ(parameter.scalar_type(), torch::kBFloat16);
      }
      EXPECT_EQ(sharded.module->forward(share_of(world, bf16_batch(1))).scalar_type(), torch::kBFloat16);
      loss_of(*sharded.module, share_of(world, bf16_batch(1))).backward();
      for (const torch::Tensor& leaf : parameters(*sharded.module)) {
        EXPECT_EQ(leaf.scalar_type(), torch::kFloat);
        EXPECT_EQ(leaf.grad().scalar_type(), torch::kFloat);
      }
    });
  }
}

// A write to a leaf by hand is an optimizer like any other.
TEST(PrecisionBf16, WritesToLeavesAreSeen) {
  for (const Strategy strategy : kFlatStrategies) {
    for (const bool low : {false, true}) {
      run_ranks(2, [&](const World& world) {
        ShardOptions options = bf16_options(strategy);
        if (!low) options.precision = {};
        ShardedBlocks sharded = shard_blocks(world, options);
        { const FullParameters scope(sharded.root); }
        for (torch::Tensor& leaf : parameters(*sharded.module)) leaf.data().fill_(0.5);
        const FullParameters scope(sharded.root);
        EXPECT_EQ(sharded.module->inlet->weight.sum().item<float>(), 15.0F) << name(strategy) << ", bf16 " << low;
      });
    }
  }
}

}  // namespace
}  // namespace fsdp::precision_test
