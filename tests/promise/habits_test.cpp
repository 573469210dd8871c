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
using ::testing::ThrowsMessage;

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
  for (const bool create_graph : {false, true}) {
    run_ranks(2, [create_graph](const World& world) {
      ShardedBlocks sharded = shard_blocks(world);
      const auto twin = make_block_model();
      parameters(*sharded.module);
      for (int pass = 0; pass < 3; ++pass) {
        sharded.module->outlet->bias.square().sum().backward({}, {}, create_graph);
        twin->outlet->bias.square().sum().backward({}, {}, create_graph);
      }
      expect_same_gradients(*sharded.module, *twin);
    });
  }
}

void expect_changed_weights(const torch::Tensor& early) {
  try {
    early.backward();
    ADD_FAILURE() << "a backward through weights that were changed since";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("modified by an inplace operation"));
  }
}

// Autograd notices of a plain model that a step has written what the graph saved; not if it is one of
// torch::optim::SGD.
TEST(Habits, AGraphOfWeightsBeforeAStepIsRefusedWhateverHasRunSince) {
  const auto loop = [](torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Loss& loss, bool has_graph) {
    loss(1).backward();
    const torch::Tensor early = loss(2);
    optimizer.step();
    model.zero_grad();
    {
      const at::AutoGradMode mode(has_graph);
      loss(3);
    }
    expect_changed_weights(early);
    optimizer.zero_grad();
    loss(4).backward();
    optimizer.step();
  };
  for (const int size : {1, 2, 3}) {
    run_ranks(size, [&](const World& world) {
      ShardedBlocks sharded = shard_blocks(world);
      torch::optim::Adam optimizer(parameters(*sharded.module), 0.01);
      const auto twin = make_block_model();
      torch::optim::Adam twins(twin->parameters(), 0.01);
      for (const bool has_graph : {true, false}) {
        loop(
            *sharded.module, optimizer,
            [&](uint64_t seed) { return loss_of(*sharded.module, share_of(world, batch(seed))); }, has_graph);
        loop(
            *twin, twins, [&](uint64_t seed) { return loss_of(*twin, batch(seed)); }, has_graph);
      }
      expect_same_weights(*sharded.module, *twin);
    });
  }
}

// The graph through the generator outlives a step of the discriminator, though both are of one unit.
struct Adversaries : torch::nn::Module {
  Adversaries() {
    generator = register_module("generator", torch::nn::Linear(4, 6));
    discriminator = register_module("discriminator", torch::nn::Linear(6, 1));
  }
  torch::nn::Linear generator{nullptr}, discriminator{nullptr};
};

template <class Optimizer, class Options>
void train_adversaries(Adversaries& model, const torch::Tensor& noise, const Options& options) {
  Optimizer of_generator(parameters(*model.generator), options);
  Optimizer of_discriminator(parameters(*model.discriminator), options);
  for (uint64_t step = 0; step < kSteps; ++step) {
    const torch::Tensor fake = torch::tanh(model.generator(noise));
    model.discriminator->zero_grad();
    model.discriminator(fake.detach()).mean().backward();
    of_discriminator.step();
    model.generator->zero_grad();
    model.discriminator(fake).square().mean().backward();
    of_generator.step();
  }
}

template <class Optimizer, class Options>
void expect_adversaries_learn(const Options& options) {
  for (const int size : {1, 2, 3}) {
    run_ranks(size, [&](const World& world) {
      const auto make = [] { return std::make_shared<Adversaries>(); };
      const auto model = testing::make_seeded(testing::kModelSeed, make);
      const auto twin = testing::make_seeded(testing::kModelSeed, make);
      fully_shard(*model, Mesh::shard(world));
      const torch::Tensor noise = batch(5, 12, 4);
      train_adversaries<Optimizer>(*model, share_of(world, noise), options);
      train_adversaries<Optimizer>(*twin, noise, options);
      expect_same_weights(*model, *twin);
    });
  }
}

TEST(Habits, AStepOfOnePartLeavesTheGraphsOfAnotherAlone) {
  expect_adversaries_learn<torch::optim::Adam>(torch::optim::AdamOptions(0.01));
  expect_adversaries_learn<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
  expect_adversaries_learn<SGD>(SGDOptions{.lr = 0.1});
}

// A block that runs without a graph and again in the backward, as C++ programs write it.
struct RunAgain : torch::autograd::Function<RunAgain> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               testing::BlockImpl* block) {
    context->save_for_backward({x});
    context->saved_data["block"] = reinterpret_cast<int64_t>(block);
    return block->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    auto* block = reinterpret_cast<testing::BlockImpl*>(context->saved_data["block"].toInt());
    const at::AutoGradMode records_graph(true);
    const torch::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({block->forward(x)}, {grads[0]});
    return {x.grad(), torch::Tensor()};
  }
};

TEST(Habits, ABlockThatRunsAgainInTheBackwardMayDoSoInEveryStep) {
  const auto loss_of_rows = [](testing::BlockModel& model, const torch::Tensor& rows) {
    torch::Tensor x = model.block(0).forward(model.inlet(rows));
    x = model.block(2).forward(RunAgain::apply(x, &model.block(1)));
    return model.outlet(x).square().mean();
  };
  for (const int size : {1, 2}) {
    run_ranks(size, [&](const World& world) {
      ShardedBlocks sharded = shard_blocks(world);
      SGD optimizer(parameters(*sharded.module), {.lr = 0.1});
      const auto twin = make_block_model();
      torch::optim::SGD twins(twin->parameters(), 0.1);
      for (uint64_t step = 0; step < kSteps; ++step) {
        loss_of_rows(*sharded.module, share_of(world, batch(step))).backward();
        loss_of_rows(*twin, batch(step)).backward();
        expect_same_gradients(*sharded.module, *twin);
        optimizer.step();
        twins.step();
        zero_grad(*sharded.module);
        twins.zero_grad();
      }
      expect_same_weights(*sharded.module, *twin);
    });
  }
}

// After what came before it: by then all units are reduced.
struct ThrowLast : torch::autograd::Function<ThrowLast> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("from the program");
  }
};

TEST(Habits, ZeroGradAfterABackwardThatThrewForgetsTheMicrobatchesBefore) {
  for (const bool by_module : {true, false}) {
    expect_same_after([=](torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Loss& loss) {
      for (uint64_t step = 0; step < kSteps; ++step) {
        loss(10 * step).backward();
        const torch::Tensor broken = ThrowLast::apply(torch::ones({}, torch::requires_grad()));
        EXPECT_THROW((loss(10 * step + 1) + broken).backward(), std::runtime_error);
        by_module ? model.zero_grad() : optimizer.zero_grad();
        loss(10 * step + 2).backward();
        optimizer.step();
        by_module ? model.zero_grad() : optimizer.zero_grad();
      }
      loss(100).backward();
    });
  }
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
