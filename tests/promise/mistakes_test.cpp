// What goes wrong in a program is an error that names the parameter, the operator or the rank; never a hang, never a
// silently wrong number.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::mistakes_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::batch;
using testing::error_of;
using ::testing::HasSubstr;
using testing::loss_of;
using testing::make_block_model;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

// A module that is one parameter.
struct Holder : torch::nn::Module {
  explicit Holder(torch::Tensor value, bool trainable = true) {
    weight = register_parameter("weight", std::move(value), trainable);
  }
  torch::Tensor weight;
};

void expect_forward_parity(const World& world, ShardedBlocks& sharded) {
  const torch::Tensor rows = share_of(world, batch(7));
  const torch::Tensor expected = make_block_model()->forward(rows);
  EXPECT_TRUE(torch::allclose(sharded.module->forward(rows), expected, 1e-5, 1e-6));
}

// The model is of use again: it trains on.
void expect_that_it_trains(const World& world, ShardedBlocks& sharded, SGD& optimizer) {
  const torch::Tensor rows = share_of(world, batch(2));
  const double before = loss_of(*sharded.module, rows).item<double>();
  for (int step = 0; step < 5; ++step) {
    loss_of(*sharded.module, rows).backward();
    optimizer.step();
    zero_grad(*sharded.module);
  }
  EXPECT_LT(loss_of(*sharded.module, rows).item<double>(), before);
}

// The pool holds the root's weights, and not those of a block beside them: neither the weights nor the NaNs that stand
// for them after a failure.
TEST(Mistakes, AGatherWithoutMemoryForItsWeightsIsAnErrorOfTheOperator) {
  run_ranks(2, [](const World& world) {
    ShardOptions options;
    options.allocator = AllocatorOptions::fixed_pool(512);
    ShardedBlocks sharded = shard_blocks(world, options);
    SGD optimizer(parameters(*sharded.module), {.lr = 0.1});
    const torch::Tensor rows = share_of(world, batch(2));
    std::string text;
    try {
      sharded.module->forward(rows);
    } catch (const c10::Error& error) {
      text = error.what_without_backtrace();
    }
    EXPECT_THAT(text, HasSubstr("out of memory for the weights of 'layers.0'"));
    EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("left in the fixed pool"));
    expect_same_weights(*sharded.module, *make_block_model());
    EXPECT_THROW(sharded.module->forward(rows), c10::Error);
    EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("left in the fixed pool"));
    expect_same_weights(*sharded.module, *make_block_model());
  });
}

TEST(Mistakes, OptimizerOnModuleParametersIsSeenAtTheSecondBackward) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    torch::optim::SGD wrong(sharded.module->parameters(), 0.1);
    const auto step = [&] {
      loss_of(*sharded.module, share_of(world, batch(1))).backward();
      wrong.step();
      wrong.zero_grad();
    };
    EXPECT_EQ(error_of(step), "no error");
    EXPECT_THAT(error_of(step), AllOf(HasSubstr("module->parameters()"), HasSubstr("fsdp::parameters(module)")));
  });
}

TEST(Mistakes, ClippingDoesNotCountAsBuildingAnOptimizer) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    const auto step = [&] {
      loss_of(*sharded.module, share_of(world, batch(1))).backward();
      clip_grad_norm_(*sharded.module, 1.0);
      zero_grad(*sharded.module);
    };
    EXPECT_EQ(error_of(step), "no error");
    EXPECT_THAT(error_of(step), HasSubstr("fsdp::parameters(module)"));
  });
}

TEST(Mistakes, ModuleToAfterShardingNamesTheParameter) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    parameters(*sharded.module);
    sharded.module->layers[1]->to(torch::kDouble);
    sharded.module->to(torch::kDouble);
    const auto train = [&] { loss_of(*sharded.module, share_of(world, batch(1)).to(torch::kDouble)).backward(); };
    EXPECT_THAT(error_of(train), AllOf(HasSubstr("outlet."), HasSubstr("Module::to()")));
    EXPECT_THAT(error_of([&] { parameters(*sharded.module); }), HasSubstr("Module::to()"));
  });
}

TEST(Mistakes, ReplacedDataOfOneParameterNamesIt) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    sharded.module->block(1).up->bias.set_data(torch::zeros({18}));
    EXPECT_THAT(error_of([&] { parameters(*sharded.module); }), HasSubstr("'layers.1.up.bias'"));
  });
}

TEST(Mistakes, WritingToAGatheredWeightNamesOperatorAndParameterAndIsThrownAway) {
  for (const Strategy strategy : {Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    run_ranks(2, [&](const World& world) {
      SCOPED_TRACE(name(strategy));
      ShardOptions options;
      options.strategy = strategy;
      ShardedBlocks sharded = shard_blocks(world, options);
      {
        const torch::NoGradGuard no_grad;
        sharded.module->inlet->weight.mul_(2);
      }
      EXPECT_THAT(error_of([&] { zero_grad(*sharded.module); }),
                  AllOf(HasSubstr("aten::mul_"), HasSubstr("'inlet.weight'")));
      expect_forward_parity(world, sharded);
    });
  }
}

TEST(Mistakes, WritingToAGatheredWeightFailsTheNextBackwardToo) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    {
      const torch::NoGradGuard no_grad;
      sharded.module->block(2).up->weight.zero_();
    }
    EXPECT_THAT(error_of([&] { loss_of(*sharded.module, share_of(world, batch(1))).backward(); }),
                HasSubstr("'layers.2.up.weight'"));
    expect_forward_parity(world, sharded);
  });
}

TEST(Mistakes, TouchOnOneRankNamesOperatorParameterAndTheMissingRank) {
  std::promise<void> rank_zero_is_done;
  const std::future<void> done = rank_zero_is_done.get_future();
  const auto begin = std::chrono::steady_clock::now();
  run_ranks(
      2,
      [&](const World& world) {
        ShardedBlocks sharded = shard_blocks(world);
        if (world.rank == 1) {
          done.wait_for(std::chrono::seconds(20));
          return;
        }
        const std::promise<void> release = std::move(rank_zero_is_done);  // its end, however it comes, lets rank 1 go
        EXPECT_TRUE(std::isnan(sharded.module->block(1).up->weight.norm().item<float>()));
        EXPECT_THAT(error_of([&] { zero_grad(*sharded.module); }),
                    AllOf(HasSubstr("norm"), HasSubstr("reads 'layers.1.up.weight'"), HasSubstr("rank 1 is missing")));
      },
      std::chrono::seconds(2));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(Mistakes, RanksThatUseDifferentUnitsNameThem) {
  run_ranks(
      2,
      [&](const World& world) {
        ShardedBlocks sharded = shard_blocks(world);
        const auto train = [&] {
          torch::Tensor x = sharded.module->inlet(share_of(world, batch(1)));
          x = sharded.module->block(world.rank == 0 ? 1 : 2).forward(x);
          sharded.module->outlet(x).square().mean().backward();
        };
        const std::string other = world.rank == 0 ? "rank 1" : "rank 0";
        EXPECT_THAT(error_of(train), AllOf(HasSubstr(world.rank == 0 ? "layers.1" : "layers.2"), HasSubstr(other)));
      },
      std::chrono::seconds(2));
}

// Each rank follows another order: they wait for each other, and each names the unit and the rank it waits for.
TEST(Mistakes, RanksThatUseUnitsInAnotherOrderNameThem) {
  run_ranks(
      2,
      [&](const World& world) {
        ShardedBlocks sharded = shard_blocks(world);
        const auto train = [&] {
          torch::Tensor x = sharded.module->inlet(share_of(world, batch(1)));
          for (const size_t block : {0, 1}) x = sharded.module->block(world.rank == 0 ? block : 1 - block).forward(x);
          sharded.module->outlet(x).square().mean().backward();
        };
        const std::string other = world.rank == 0 ? "rank 1" : "rank 0";
        // Whose deadline passes first finds the other missing; that one may then see it leave.
        EXPECT_THAT(error_of(train), AllOf(HasSubstr("gather of 'layers."),
                                           AnyOf(HasSubstr(other + " is missing"), HasSubstr(other + " closed"))));
      },
      std::chrono::seconds(2));
}

TEST(Mistakes, ReplicasThatUseOtherUnitsNameThem) {
  run_ranks(
      4,
      [&](const World& world) {
        ShardOptions options;
        options.strategy = Strategy::kHybrid;
        ShardedBlocks sharded = testing::shard_blocks(Mesh(world, {{"replicate", 2}, {"shard", 2}}), options);
        const auto train = [&] {  // both ranks of a shard group go the same way, the groups do not
          torch::Tensor x = sharded.module->inlet(share_of(world, batch(1)));
          x = sharded.module->block(world.rank < 2 ? 1 : 2).forward(x);
          sharded.module->outlet(x).square().mean().backward();
        };
        // The peer, or, where another pair's deadline passed first, the rank of it that gave up.
        const std::string peer = c10::str("rank ", (world.rank + 2) % 4);
        const std::string other = "gave up in reduce over replicas of 'layers.";
        EXPECT_THAT(error_of(train),
                    AllOf(HasSubstr("reduce over replicas of 'layers."), AnyOf(HasSubstr(peer), HasSubstr(other))));
      },
      std::chrono::seconds(2));
}

TEST(Mistakes, LayoutsAndDtypesThatDifferAreNamedAtOnce) {
  run_ranks(3, [](const World& world) {
    const auto refusal = [&](const ShardOptions& options, const torch::Tensor& weight) {
      Holder module(weight);
      return error_of([&] { fully_shard(module, Mesh::shard(world), options); });
    };
    ShardOptions rows;
    if (world.rank == 1) rows.layout.granularity = layout::Granularity::kRow;
    EXPECT_THAT(refusal(rows, torch::zeros({4, 4})), HasSubstr("rank 1 has other"));
    ShardOptions dtypes;
    if (world.rank == 2) dtypes.precision.reduce = at::kBFloat16;
    EXPECT_THAT(refusal(dtypes, torch::zeros({4, 4})), HasSubstr("rank 2 has other"));
    EXPECT_THAT(refusal({}, torch::zeros({4, 4}, world.rank == 2 ? torch::kDouble : torch::kFloat)),
                HasSubstr("rank 2 has other"));
  });
}

TEST(Mistakes, TouchFromAnotherThreadNamesTheParameterAndHarmsNothing) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    std::thread([&] { sharded.module->block(0).down->weight.sum(); }).join();
    EXPECT_THAT(error_of([&] { zero_grad(*sharded.module); }),
                AllOf(HasSubstr("'layers.0.down.weight'"), HasSubstr("thread")));
    EXPECT_EQ(sharded.root.counters().resident_unsharded_bytes, 0);
    expect_forward_parity(world, sharded);
  });
}

TEST(Mistakes, RanksThatStartDifferentAreRefused) {
  run_ranks(3, [](const World& world) {
    Holder module(torch::full({4}, world.rank == 2 ? 1.0F : 0.0F));
    EXPECT_THAT(error_of([&] { fully_shard(module, Mesh::shard(world)); }),
                AllOf(HasSubstr("'weight'"), HasSubstr("rank 2 starts from other weights"), HasSubstr("kBroadcast")));
  });
}

TEST(Mistakes, BroadcastMakesStartsEqual) {
  run_ranks(3, [](const World& world) {
    Holder module(torch::full({7}, static_cast<float>(world.rank + 1)));
    ShardOptions options;
    options.initial_weights = InitialWeights::kBroadcast;
    const Unit unit = fully_shard(module, Mesh::shard(world), options);
    const FullParameters scope(unit);
    EXPECT_TRUE(torch::equal(module.weight.detach().clone(), torch::ones({7})));
  });
}

TEST(Mistakes, DifferentOptionsShapesAndTrainabilityAreRefused) {
  run_ranks(2, [](const World& world) {
    const bool other = world.rank == 1;
    const Mesh mesh = Mesh::shard(world);
    ShardOptions options;
    options.strategy = other ? Strategy::kOptim : Strategy::kOptimGrads;
    Holder same(torch::zeros({4}));
    EXPECT_THAT(error_of([&] { fully_shard(same, mesh, options); }), HasSubstr("rank 1 has other parameters"));
    Holder shape(torch::zeros({other ? 4 : 5}));
    EXPECT_THAT(error_of([&] { fully_shard(shape, mesh); }), HasSubstr("rank 1 has other parameters"));
    Holder frozen(torch::zeros({4}), other);
    EXPECT_THAT(error_of([&] { fully_shard(frozen, mesh); }), HasSubstr("rank 1 has other parameters"));
  });
}

TEST(Mistakes, UnsuitableParametersAreRefusedByName) {
  run_ranks(1, [](const World& world) {
    const auto refusal = [&](torch::Tensor value, bool trainable = true) {
      Holder module(std::move(value), trainable);
      return error_of([&] { fully_shard(module, Mesh::shard(world)); });
    };
    EXPECT_THAT(refusal(torch::zeros({3, 1}).expand({3, 4})), AllOf(HasSubstr("'weight'"), HasSubstr("contiguous()")));
    EXPECT_THAT(refusal(torch::zeros({3}, torch::kComplexFloat)), AllOf(HasSubstr("'weight'"), HasSubstr("Complex")));
    EXPECT_THAT(refusal(torch::zeros({3}, torch::kLong), false), AllOf(HasSubstr("'weight'"), HasSubstr("Long")));
  });
}

TEST(Mistakes, BytesAreShardedAndStayBytes) {
  run_ranks(3, [](const World& world) {
    const torch::Tensor bytes = torch::arange(37, torch::kByte);
    Holder module(bytes.clone(), /*trainable=*/false);
    ShardOptions options;
    options.precision = Precision::bf16();
    fully_shard(module, Mesh::shard(world), options);
    EXPECT_EQ(parameters(module)[0].scalar_type(), torch::kByte);
    EXPECT_LT(parameters(module)[0].numel(), 37);
    EXPECT_TRUE(torch::equal(module.weight.detach().clone(), bytes));
  });
}

TEST(Mistakes, IgnoredParametersStayAsTheyAre) {
  run_ranks(2, [](const World& world) {
    const auto module = make_block_model(1);
    ShardOptions options;
    options.ignored_parameters = {module->inlet->weight};
    const torch::Tensor before = module->inlet->weight.detach().clone();
    fully_shard(*module, Mesh::shard(world), options);
    EXPECT_TRUE(torch::equal(module->inlet->weight, before));
    EXPECT_TRUE(parameters(*module)[0].is_same(module->inlet->weight));
    EXPECT_EQ(parameters(*module)[1].dim(), 1);
  });
}

TEST(Mistakes, ModulesWithNothingToShardAreRefused) {
  run_ranks(1, [](const World& world) {
    torch::nn::GELU empty;
    EXPECT_THAT(error_of([&] { fully_shard(*empty, Mesh::shard(world)); }), HasSubstr("no parameters to shard"));
    const auto module = make_block_model(1);
    const Unit unit = fully_shard(*module, Mesh::shard(world));
    EXPECT_THAT(error_of([&] { fully_shard(*module, Mesh::shard(world)); }), HasSubstr("Shard each module once"));
  });
}

TEST(Mistakes, AStepBetweenForwardAndBackwardIsAnError) {
  for (const int size : {1, 2}) {
    run_ranks(size, [](const World& world) {
      ShardedBlocks sharded = shard_blocks(world);
      SGD optimizer(parameters(*sharded.module), {.lr = 0.1});
      const torch::Tensor rows = share_of(world, batch(1));
      loss_of(*sharded.module, rows).backward();
      const torch::Tensor early = loss_of(*sharded.module, rows);
      optimizer.step();
      EXPECT_THAT(error_of([&] { early.backward(); }),
                  AllOf(HasSubstr("outlet."), HasSubstr("before the optimizer's step")));
      zero_grad(*sharded.module);
      expect_that_it_trains(world, sharded, optimizer);
    });
  }
}

TEST(Mistakes, AMeshThatDoesNotFitIsRefusedByItsAxis) {
  run_ranks(2, [](const World& world) {
    Holder module(torch::zeros({4}));
    const Mesh tensor(world, {{"tensor", 2}, {"shard", 1}});
    EXPECT_THAT(error_of([&] { fully_shard(module, tensor); }),
                AllOf(HasSubstr("'tensor' has 2 ranks"), HasSubstr("Mesh::shard(world)")));
    ShardOptions options;
    options.strategy = Strategy::kHybrid;
    EXPECT_THAT(error_of([&] { fully_shard(module, Mesh::shard(world), options); }),
                AllOf(HasSubstr("hybrid on mesh shard=2"), HasSubstr("needs an axis 'replicate'")));
    options.strategy = Strategy::kOptimGradsParams;
    options.reshard_after_forward = 3;
    EXPECT_THAT(error_of([&] { fully_shard(module, Mesh::shard(world), options); }),
                AllOf(HasSubstr("got 3"), HasSubstr("divisor of the 2 ranks")));
  });
}

}  // namespace
}  // namespace fsdp::mistakes_test
