// Programs keep the habits of LibTorch: each does what it does on an unsharded model, or is refused by name. Here those
// that concern gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::habits_test {
namespace {

using ::testing::AllOf;
using testing::batch;
using testing::error_of;
using testing::expect_same_gradients;
using testing::expect_same_weights;
using ::testing::HasSubstr;
using testing::loss_of;
using testing::make_block_model;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

constexpr uint64_t kSteps = 3;

// A loop of a program. Given the model, its optimizer and the loss of one microbatch.
using Loss = std::function<torch::Tensor(uint64_t seed)>;
using Loop = std::function<void(torch::nn::Module&, torch::optim::Optimizer&, const Loss&)>;

// The loop on the sharded model and on its twin, with torch's own optimizer, which adds momentum and weight decay also
// to gradients that are zero.
void expect_same_after(const Loop& loop, const ShardOptions& options = {}) {
  for (const int size : {1, 2, 3}) {
    run_ranks(size, [&](const World& world) {
      SCOPED_TRACE(size);
      const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01);
      ShardedBlocks sharded = shard_blocks(world, options);
      torch::optim::SGD optimizer(parameters(*sharded.module), sgd);
      loop(*sharded.module, optimizer,
           [&](uint64_t seed) { return loss_of(*sharded.module, share_of(world, batch(seed))); });
      const auto twin = make_block_model();
      torch::optim::SGD twins(twin->parameters(), sgd);
      loop(*twin, twins, [&](uint64_t seed) { return loss_of(*twin, batch(seed)); });
      expect_same_weights(*sharded.module, *twin);
      expect_same_gradients(*sharded.module, *twin);
    });
  }
}

TEST(Habits, ModuleZeroGradEmptiesGradientsWhereverInTheStepItStands) {
  expect_same_after([](torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Loss& loss) {
    for (uint64_t step = 0; step < kSteps; ++step) {
      model.zero_grad();
      loss(step).backward();
      optimizer.step();
    }
  });
  expect_same_after([](torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Loss& loss) {
    for (uint64_t step = 0; step < kSteps; ++step) {
      const torch::Tensor value = loss(step);
      model.zero_grad();
      value.backward();
      optimizer.step();
    }
  });
  expect_same_after([](torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Loss& loss) {
    for (uint64_t step = 0; step < kSteps; ++step) {
      loss(step).backward();
      optimizer.step();
      model.zero_grad();
    }
    loss(kSteps).backward();  // what is compared
  });
}

TEST(Habits, GradientsAddUpUntilModuleZeroGrad) {
  const Loop loop = [](torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Loss& loss) {
    for (uint64_t step = 0; step < kSteps; ++step) {
      for (uint64_t microbatch = 0; microbatch < 3; ++microbatch) loss(10 * step + microbatch).backward();
      optimizer.step();
      model.zero_grad();
      loss(10 * step + 3).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    loss(100).backward();
  };
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    SCOPED_TRACE(name(strategy));
    ShardOptions options;
    options.strategy = strategy;
    expect_same_after(loop, options);
  }
}

TEST(Habits, ModuleZeroGradOfAPartEmptiesThatPart) {
  expect_same_after([](torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Loss& loss) {
    auto& blocks = dynamic_cast<testing::BlockModel&>(model);
    for (uint64_t step = 0; step < kSteps; ++step) {
      loss(step).backward();
      optimizer.step();
      blocks.block(1).zero_grad();
      blocks.block(2).up->zero_grad();
      loss(10 + step).backward();
    }
  });
}

TEST(Habits, ModuleZeroGradWithZerosLeavesZeros) {
  expect_same_after([](torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Loss& loss) {
    for (uint64_t step = 0; step < kSteps; ++step) {
      loss(step).backward();
      optimizer.step();
      model.zero_grad(/*set_to_none=*/false);
      loss(10 + step).backward();
      optimizer.step();
      model.zero_grad(/*set_to_none=*/false);
    }
    loss(100).backward();
  });
}

// What is done with a step that has gone wrong.
TEST(Habits, AnOptimizerOfLibTorchFindsNothingAfterModuleZeroGrad) {
  for (const bool set_to_none : {true, false}) {
    expect_same_after([=](torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Loss& loss) {
      for (uint64_t step = 0; step < kSteps; ++step) {
        loss(step).backward();
        if (step == 1) model.zero_grad(set_to_none);
        optimizer.step();
        model.zero_grad();
      }
      loss(kSteps).backward();
    });
  }
}

TEST(Habits, DetachingAGradientOfTheModuleTakesNothingFromTheOptimizer) {
  expect_same_after([](torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Loss& loss) {
    loss(1).backward();
    for (torch::Tensor& parameter : model.parameters()) parameter.grad().detach();
    loss(2).backward();
    optimizer.step();
    model.zero_grad();
    loss(3).backward();
  });
}

TEST(Habits, ModuleZeroGradForgetsWhatNoSyncCollected) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    const auto backward = [&](uint64_t seed) { loss_of(*sharded.module, share_of(world, batch(seed))).backward(); };
    SGD optimizer(parameters(*sharded.module), {.lr = 0.1});
    {
      const NoSync no_sync(sharded.root);
      backward(1);
    }
    sharded.module->zero_grad();
    backward(2);
    const auto twin = make_block_model();
    loss_of(*twin, batch(2)).backward();
    expect_same_gradients(*sharded.module, *twin);
  });
}

// A gradient that arrives before anything else of a backward, on top of what is there.
TEST(Habits, ABackwardThatReadsNoWeightFirstAddsUp) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    const auto twin = make_block_model();
    parameters(*sharded.module);
    for (int pass = 0; pass < 3; ++pass) {
      sharded.module->outlet->bias.square().sum().backward();
      twin->outlet->bias.square().sum().backward();
    }
    expect_same_gradients(*sharded.module, *twin);
  });
}

TEST(Habits, ClippingModuleParametersIsRefused) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    SGD optimizer(parameters(*sharded.module), {.lr = 0.1});
    const auto step = [&] {
      loss_of(*sharded.module, share_of(world, batch(1))).backward();
      torch::nn::utils::clip_grad_norm_(sharded.module->parameters(), 0.1);
      optimizer.step();
    };
    const std::string error = error_of(step);
    EXPECT_THAT(error,
                AllOf(HasSubstr("uses the gradient of '"), HasSubstr("fsdp::clip_grad_norm_(module, max_norm)")));
    expect_same_weights(*sharded.module, *make_block_model());
    const auto clip_values = [&] {
      loss_of(*sharded.module, share_of(world, batch(1))).backward();
      torch::nn::utils::clip_grad_value_(sharded.module->parameters(), 0.1);
      optimizer.step();
    };
    EXPECT_THAT(error_of(clip_values), HasSubstr("fsdp::parameters(module)"));
    expect_same_weights(*sharded.module, *make_block_model());
  });
}

TEST(Habits, ClippingLeavesByTheirOwnNormIsRefusedWhereTheyAreSlices) {
  for (const int size : {1, 2, 3}) {
    run_ranks(size, [&](const World& world) {
      ShardedBlocks sharded = shard_blocks(world);
      SGD optimizer(parameters(*sharded.module), {.lr = 0.1});
      const auto step = [&] {
        loss_of(*sharded.module, share_of(world, batch(1))).backward();
        torch::nn::utils::clip_grad_norm_(parameters(*sharded.module), 0.1);
        optimizer.step();
      };
      const std::string error = error_of(step);
      if (size > 1) {
        EXPECT_THAT(error, AllOf(HasSubstr("this rank's slice"), HasSubstr("fsdp::clip_grad_norm_(module, max_norm)")));
        expect_same_weights(*sharded.module, *make_block_model());
        return;
      }
      EXPECT_EQ(error, "no error");
      const auto twin = make_block_model();
      torch::optim::SGD twins(twin->parameters(), 0.1);
      loss_of(*twin, batch(1)).backward();
      torch::nn::utils::clip_grad_norm_(twin->parameters(), 0.1);
      twins.step();
      expect_same_weights(*sharded.module, *twin);
    });
  }
}

TEST(Habits, ClippingLeavesThatAreWholeIsNoClippingOfSlices) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(Mesh(world, {{"replicate", 2}, {"shard", 1}}), {});
    SGD optimizer(parameters(*sharded.module), {.lr = 0.1});
    const auto twin = make_block_model();
    torch::optim::SGD twins(twin->parameters(), 0.1);
    loss_of(*sharded.module, share_of(world, batch(1))).backward();
    loss_of(*twin, batch(1)).backward();
    torch::nn::utils::clip_grad_norm_(parameters(*sharded.module), 0.1);
    torch::nn::utils::clip_grad_norm_(twin->parameters(), 0.1);
    optimizer.step();
    twins.step();
    expect_same_weights(*sharded.module, *twin);
  });
}

TEST(Habits, AGradientSetThroughTheModuleIsRefused) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    SGD optimizer(parameters(*sharded.module), {.lr = 0.1});
    loss_of(*sharded.module, share_of(world, batch(1))).backward();
    sharded.module->outlet->bias.mutable_grad() = torch::ones_like(sharded.module->outlet->bias);
    EXPECT_THAT(error_of([&] { optimizer.step(); }), AllOf(HasSubstr("'outlet.bias'"), HasSubstr("of its own")));
    EXPECT_EQ(error_of([&] { optimizer.step(); }), "no error");
  });
}

}  // namespace
}  // namespace fsdp::habits_test
