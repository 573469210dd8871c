// A training loop may do what an unsharded one may: fail and go on, evaluate in between, accumulate, use part of a
// model.
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"
#include "tests/support/worlds.h"

namespace fsdp::flow_test {
namespace {

using testing::batch;
using testing::BlockModel;
using testing::expect_same_gradients;
using testing::expect_same_weights;
using testing::kFlatStrategies;
using testing::loss_of;
using testing::make_block_model;
using testing::make_seeded;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

constexpr double kLearningRate = 0.05;

// A sharded model and an unsharded one that does the same things, each with its optimizer.
struct Pair {
  explicit Pair(const World& world, const ShardOptions& options = {})
      : world(world),
        sharded(shard_blocks(world, options)),
        plain(make_block_model()),
        sharded_optimizer(parameters(*sharded.module), kLearningRate),
        plain_optimizer(plain->parameters(), kLearningRate) {}

  void step_both(uint64_t seed) {
    const torch::Tensor rows = batch(seed);
    loss_of(*sharded.module, share_of(world, rows)).backward();
    loss_of(*plain, rows).backward();
    expect_same_gradients(*sharded.module, *plain);
    sharded_optimizer.step();
    plain_optimizer.step();
    zero_both();
    expect_same_weights(*sharded.module, *plain);
  }

  void zero_both() {
    zero_grad(*sharded.module);
    plain_optimizer.zero_grad();
  }

  int64_t resident() const { return sharded.root.counters().resident_unsharded_bytes; }

  World world;
  ShardedBlocks sharded;
  std::shared_ptr<BlockModel> plain;
  torch::optim::AdamW sharded_optimizer;
  torch::optim::AdamW plain_optimizer;
};

void with_every_strategy(int world_size, const std::function<void(Pair&)>& body) {
  for (const Strategy strategy : kFlatStrategies) {
    run_ranks(world_size, [&](const World& world) {
      SCOPED_TRACE(c10::str(name(strategy), ", rank ", world.rank));
      ShardOptions options;
      options.strategy = strategy;
      Pair pair(world, options);
      body(pair);
    });
  }
}

// ---- exceptions

TEST(Flow, AStepAfterAnExceptionInForwardIsClean) {
  with_every_strategy(2, [](Pair& pair) {
    pair.step_both(1);
    const auto fail = [](BlockModel& model, const torch::Tensor& rows) {
      torch::Tensor x = model.inlet(rows);
      x = model.block(0).forward(x);
      model.block(1).up(x.narrow(1, 0, 2));  // wrong shape
    };
    EXPECT_THROW(fail(*pair.sharded.module, share_of(pair.world, batch(2))), c10::Error);
    EXPECT_THROW(fail(*pair.plain, batch(2)), c10::Error);
    pair.step_both(3);  // no library entry in between
    EXPECT_EQ(pair.resident(), 0);
    pair.step_both(4);
  });
}

torch::Tensor throwing_gradient(const torch::Tensor&) { throw std::runtime_error("from the program's hook"); }

void fail_in_backward(BlockModel& model, const torch::Tensor& rows) {
  torch::Tensor x = model.block(0).forward(model.inlet(rows));
  x.register_hook(throwing_gradient);
  x = model.block(2).forward(model.block(1).forward(x));
  model.outlet(x).square().mean().backward();
}

TEST(Flow, AStepAfterAnExceptionInBackwardIsClean) {
  with_every_strategy(3, [](Pair& pair) {
    pair.step_both(1);
    EXPECT_THROW(fail_in_backward(*pair.sharded.module, share_of(pair.world, batch(2))), std::runtime_error);
    pair.zero_both();
    EXPECT_EQ(pair.resident(), 0);
    pair.step_both(3);
    pair.step_both(4);
  });
}

TEST(Flow, AForwardRightAfterAFailedBackwardIsClean) {
  run_ranks(2, [](const World& world) {
    Pair pair(world);
    pair.step_both(1);
    EXPECT_THROW(fail_in_backward(*pair.sharded.module, share_of(world, batch(2))), std::runtime_error);
    pair.step_both(3);  // zero_grad() was not called: what a failed backward collected is gone
    EXPECT_EQ(pair.resident(), 0);
  });
}

// ---- backwards

TEST(Flow, ASecondBackwardAdds) {
  with_every_strategy(2, [](Pair& pair) {
    const torch::Tensor loss = loss_of(*pair.sharded.module, share_of(pair.world, batch(5)));
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    const torch::Tensor expected = loss_of(*pair.plain, batch(5));
    expected.backward({}, /*retain_graph=*/true);
    expected.backward();
    expect_same_gradients(*pair.sharded.module, *pair.plain);
    EXPECT_EQ(pair.resident(), 0);
    pair.zero_both();
    pair.step_both(6);
  });
}

TEST(Flow, AutogradGradReducesNothingAndIsRight) {
  run_ranks(2, [](const World& world) {
    Pair pair(world);
    pair.step_both(1);
    pair.sharded.root.reset_counters();
    const torch::Tensor input = share_of(world, batch(2)).clone().requires_grad_();
    const auto gradient = torch::autograd::grad({loss_of(*pair.sharded.module, input)}, {input})[0];
    const torch::Tensor same_input = input.detach().clone().requires_grad_();
    const auto expected = torch::autograd::grad({loss_of(*pair.plain, same_input)}, {same_input})[0];
    EXPECT_TRUE(torch::allclose(gradient, expected, 1e-4, 1e-6));
    EXPECT_EQ(pair.sharded.root.counters().reduces, 0);
    EXPECT_EQ(pair.resident(), 0);
    for (const torch::Tensor& leaf : parameters(*pair.sharded.module)) EXPECT_FALSE(leaf.grad().defined());
    pair.step_both(3);
  });
}

TEST(Flow, BackwardWithInputsOfTheGraphOnly) {
  run_ranks(2, [](const World& world) {
    Pair pair(world);
    const torch::Tensor input = share_of(world, batch(2)).clone().requires_grad_();
    const auto loss = loss_of(*pair.sharded.module, input);
    torch::autograd::backward({loss}, {}, /*retain_graph=*/false, /*create_graph=*/false, {input});
    EXPECT_TRUE(input.grad().defined());
    for (const torch::Tensor& leaf : parameters(*pair.sharded.module)) EXPECT_FALSE(leaf.grad().defined());
    pair.step_both(3);
  });
}

// ---- evaluation between steps

void expect_same_outputs(Pair& pair, uint64_t seed) {
  const torch::Tensor rows = share_of(pair.world, batch(seed));
  EXPECT_TRUE(torch::allclose(pair.sharded.module->forward(rows), pair.plain->forward(rows), 1e-4, 1e-6));
}

TEST(Flow, InferenceModeBetweenStepsChangesNothing) {
  with_every_strategy(2, [](Pair& pair) {
    for (uint64_t seed = 1; seed < 4; ++seed) {
      pair.step_both(seed);
      const c10::InferenceMode inference;
      for (int i = 0; i < 2; ++i) expect_same_outputs(pair, 100 + seed);
    }
    pair.step_both(9);
    EXPECT_EQ(pair.resident(), 0);
  });
}

TEST(Flow, ForwardOnlyLeavesEverythingAtRest) {
  with_every_strategy(2, [](Pair& pair) {
    pair.step_both(1);
    {
      const ForwardOnly scope(pair.sharded.root);
      EXPECT_FALSE(pair.sharded.module->forward(share_of(pair.world, batch(2))).requires_grad());
      for (int i = 0; i < 3; ++i) expect_same_outputs(pair, 50);
    }
    EXPECT_EQ(pair.resident(), 0);
    EXPECT_TRUE(at::GradMode::is_enabled());
    pair.step_both(3);
  });
}

TEST(Flow, UnitsUnshardAndReshardByHand) {
  run_ranks(3, [](const World& world) {
    Pair pair(world);
    Unit& block = pair.sharded.blocks[1];
    block.unshard();
    EXPECT_EQ(pair.resident(), block.largest_unit_bytes());
    EXPECT_TRUE(torch::equal(pair.sharded.module->block(1).up->weight, pair.plain->block(1).up->weight));
    EXPECT_EQ(pair.sharded.root.counters().gathers, 1);  // reading an unsharded unit gathers nothing
    block.unshard();
    EXPECT_EQ(pair.sharded.root.counters().gathers, 1);
    block.reshard();
    block.reshard();
    EXPECT_EQ(pair.resident(), 0);
    pair.step_both(1);
  });
}

TEST(Flow, FullParametersAreReadableInTheirScope) {
  with_every_strategy(2, [](Pair& pair) {
    pair.step_both(1);
    {
      const FullParameters scope(pair.sharded.blocks[2]);
      const torch::Tensor weight = pair.sharded.module->block(2).down->weight;
      EXPECT_TRUE(torch::allclose(weight, pair.plain->block(2).down->weight, 1e-4, 1e-6));
    }
    EXPECT_EQ(pair.resident(), 0);
  });
}

TEST(Flow, ABackwardFreesNothingThatAFullParametersHolds) {
  with_every_strategy(2, [](Pair& pair) {
    pair.step_both(1);
    {
      const torch::Tensor loss = loss_of(*pair.sharded.module, share_of(pair.world, batch(2)));
      const FullParameters scope(pair.sharded.blocks[1]);
      loss.backward();
      pair.sharded.root.reset_counters();
      const torch::Tensor weight = pair.sharded.module->block(1).down->weight;
      if (pair.world.rank == 0) {
        EXPECT_TRUE(torch::allclose(weight, pair.plain->block(1).down->weight, 1e-4, 1e-6));
      }
      EXPECT_EQ(pair.sharded.root.counters().gathers, 0);
    }
    pair.zero_both();
    EXPECT_EQ(pair.resident(), 0);
    pair.step_both(3);
  });
}

// Rank 0 writes a file: what it reads must not gather the units that the recorded order has next.
TEST(Flow, OneRankAloneMayReadWhatAFullParametersHolds) {
  with_every_strategy(2, [](Pair& pair) {
    for (const uint64_t seed : {1, 2, 3}) pair.step_both(seed);
    for (Unit& block : pair.sharded.blocks) {
      const FullParameters scope(block);
      pair.sharded.root.reset_counters();
      for (size_t i = 0; i < pair.sharded.blocks.size(); ++i) {
        const bool held = pair.sharded.blocks[i].state() == block.state();
        if (held && pair.world.rank == 0) {
          EXPECT_GT(pair.sharded.module->block(i).down->weight.norm().item<float>(), 0);
        }
      }
      zero_grad(*pair.sharded.module);  // a library entry, at which other units rest
      EXPECT_EQ(pair.sharded.root.counters().gathers, 0);
    }
    EXPECT_EQ(pair.resident(), 0);
    pair.step_both(4);
  });
}

// ---- parameters that a step does not use

struct Branches : torch::nn::Module {
  Branches() {
    always = register_module("always", torch::nn::Linear(4, 4));
    sometimes = register_parameter("sometimes", torch::randn({4}));
    never = register_parameter("never", torch::randn({3, 4}));
  }
  torch::Tensor forward(const torch::Tensor& x, bool use) { return use ? always(x) * sometimes : always(x); }
  torch::nn::Linear always{nullptr};
  torch::Tensor sometimes;
  torch::Tensor never;
};

std::shared_ptr<Branches> make_branches() {
  return make_seeded(31, [] { return std::make_shared<Branches>(); });
}

// `uses[rank]`: whether that rank's share of the batch takes the branch.
void expect_branch_parity(int world_size, const std::vector<bool>& uses) {
  run_ranks(world_size, [&](const World& world) {
    const auto sharded = make_branches();
    const auto plain = make_branches();
    const Unit root = fully_shard(*sharded, Mesh::shard(world));
    torch::optim::AdamW optimizer(parameters(*sharded), kLearningRate);
    torch::optim::AdamW plain_optimizer(plain->parameters(), kLearningRate);
    for (uint64_t seed = 0; seed < 3; ++seed) {
      const torch::Tensor rows = batch(seed, 12, 4);
      sharded->forward(share_of(world, rows), uses[static_cast<size_t>(world.rank)]).square().mean().backward();
      torch::Tensor loss = torch::zeros({});
      for (int rank = 0; rank < world_size; ++rank) {
        World peer = world;
        peer.rank = rank;
        loss =
            loss + plain->forward(share_of(peer, rows), uses[static_cast<size_t>(rank)]).square().mean() / world_size;
      }
      loss.backward();
      expect_same_gradients(*sharded, *plain);
      optimizer.step();
      plain_optimizer.step();
      zero_grad(*sharded);
      plain_optimizer.zero_grad();
      expect_same_weights(*sharded, *plain);
    }
  });
}

TEST(Flow, UnusedParametersKeepAnUndefinedGradient) { expect_branch_parity(2, {false, false}); }
TEST(Flow, AParameterThatOnlyRankZeroUsesIsReduced) { expect_branch_parity(2, {true, false}); }
TEST(Flow, AParameterThatOnlyTheLastRankUsesIsReduced) { expect_branch_parity(3, {false, false, true}); }

// ---- accumulation

TEST(Flow, NoSyncThenSyncEqualsAccumulation) {
  with_every_strategy(2, [](Pair& pair) {
    for (int round = 0; round < 2; ++round) {
      pair.sharded.root.reset_counters();
      {
        const NoSync scope(pair.sharded.root);
        for (uint64_t seed = 1; seed < 3; ++seed)
          loss_of(*pair.sharded.module, share_of(pair.world, batch(seed))).backward();
        EXPECT_EQ(pair.sharded.root.counters().reduces, 0);
      }
      loss_of(*pair.sharded.module, share_of(pair.world, batch(3))).backward();
      for (uint64_t seed = 1; seed < 4; ++seed) loss_of(*pair.plain, batch(seed)).backward();
      EXPECT_EQ(pair.sharded.root.counters().reduces, pair.sharded.root.num_units());
      expect_same_gradients(*pair.sharded.module, *pair.plain);
      pair.sharded_optimizer.step();
      pair.plain_optimizer.step();
      pair.zero_both();
    }
    expect_same_weights(*pair.sharded.module, *pair.plain);
  });
}

TEST(Flow, ZeroGradForgetsWhatNoSyncCollected) {
  with_every_strategy(2, [](Pair& pair) {
    {
      const NoSync scope(pair.sharded.root);
      loss_of(*pair.sharded.module, share_of(pair.world, batch(1))).backward();
    }
    zero_grad(*pair.sharded.module);
    pair.step_both(2);
  });
}

TEST(Flow, SetRequiresGradientSync) {
  run_ranks(2, [](const World& world) {
    Pair pair(world);
    pair.sharded.root.set_requires_gradient_sync(false);
    loss_of(*pair.sharded.module, share_of(world, batch(1))).backward();
    EXPECT_EQ(pair.sharded.root.counters().reduces, 0);
    for (const torch::Tensor& leaf : parameters(*pair.sharded.module)) EXPECT_FALSE(leaf.grad().defined());
    pair.sharded.root.set_requires_gradient_sync(true);
    loss_of(*pair.sharded.module, share_of(world, batch(2))).backward();
    for (uint64_t seed = 1; seed < 3; ++seed) loss_of(*pair.plain, batch(seed)).backward();
    expect_same_gradients(*pair.sharded.module, *pair.plain);
  });
}

TEST(Flow, ExceptionInANoSyncBackwardThenACleanAccumulation) {
  run_ranks(2, [](const World& world) {
    Pair pair(world);
    {
      const NoSync scope(pair.sharded.root);
      EXPECT_THROW(fail_in_backward(*pair.sharded.module, share_of(world, batch(1))), std::runtime_error);
    }
    pair.zero_both();
    pair.step_both(2);
  });
}

TEST(Flow, KeptWeightsAreGatheredAgainOnlyAfterTheOptimizer) {
  run_ranks(2, [](const World& world) {
    Pair pair(world);
    Unit& root = pair.sharded.root;
    root.set_reshard_after_forward(false);
    root.set_reshard_after_backward(false);
    const auto gathers_of_a_pass = [&](uint64_t seed) {
      root.reset_counters();
      loss_of(*pair.sharded.module, share_of(world, batch(seed))).backward();
      loss_of(*pair.plain, batch(seed)).backward();
      return root.counters().gathers;
    };
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(gathers_of_a_pass(1), root.num_units());
      EXPECT_EQ(gathers_of_a_pass(2), 0);
      expect_same_gradients(*pair.sharded.module, *pair.plain);
      pair.sharded_optimizer.step();
      pair.plain_optimizer.step();
      pair.zero_both();
    }
    expect_same_weights(*pair.sharded.module, *pair.plain);
    EXPECT_GT(pair.resident(), 0);
    root.set_reshard_after_backward(true);
    pair.step_both(3);
    EXPECT_EQ(pair.resident(), 0);
  });
}

TEST(Flow, DivideFactorOneSums) {
  with_every_strategy(3, [](Pair& pair) {
    pair.sharded.root.set_gradient_divide_factor(1);
    loss_of(*pair.sharded.module, share_of(pair.world, batch(1))).backward();
    (loss_of(*pair.plain, batch(1)) * 3).backward();
    expect_same_gradients(*pair.sharded.module, *pair.plain);
  });
}

// ---- torch::optim's own zero_grad

TEST(Flow, ZeroGradOfTorchOptimIsEnough) {
  for (const bool set_to_none : {true, false}) {
    with_every_strategy(2, [&](Pair& pair) {
      for (uint64_t seed = 1; seed < 4; ++seed) {
        for (uint64_t half = 0; half < 2; ++half) {  // two backwards add
          loss_of(*pair.sharded.module, share_of(pair.world, batch(10 * seed + half))).backward();
          loss_of(*pair.plain, batch(10 * seed + half)).backward();
        }
        expect_same_gradients(*pair.sharded.module, *pair.plain);
        pair.sharded_optimizer.step();
        pair.plain_optimizer.step();
        pair.sharded_optimizer.zero_grad(set_to_none);
        pair.plain_optimizer.zero_grad(set_to_none);
      }
      expect_same_weights(*pair.sharded.module, *pair.plain);
    });
  }
}

TEST(Flow, AGradientThatTheProgramPutThereIsAddedTo) {
  run_ranks(2, [](const World& world) {
    Pair pair(world);
    for (torch::Tensor& leaf : parameters(*pair.sharded.module)) leaf.mutable_grad() = torch::ones_like(leaf.detach());
    for (torch::Tensor& parameter : pair.plain->parameters())
      parameter.mutable_grad() = torch::ones_like(parameter.detach());
    loss_of(*pair.sharded.module, share_of(world, batch(1))).backward();
    loss_of(*pair.plain, batch(1)).backward();
    expect_same_gradients(*pair.sharded.module, *pair.plain);
  });
}

}  // namespace
}  // namespace fsdp::flow_test
