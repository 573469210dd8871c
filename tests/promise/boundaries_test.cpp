// For those who would rather say than be seen: explicit boundaries with fsdp::forward(), reads with fsdp::touch(). And
// a model whose construction is put off until it is sharded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::boundaries_test {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::batch;
using testing::BlockModel;
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

int64_t resident(const ShardedBlocks& sharded) { return sharded.root.counters().resident_unsharded_bytes; }

int64_t root_bytes(const World& world) { return testing::root_shard_numel(world.size) * world.size * 4; }
int64_t block_bytes(const World& world) { return testing::block_shard_numel(world.size) * world.size * 4; }

// ---- fsdp::forward

torch::Tensor forward_with_boundaries(BlockModel& model, const torch::Tensor& rows) {
  torch::Tensor x = model.inlet(rows);
  for (size_t i = 0; i < model.layers->size(); ++i) x = fsdp::forward(model.block(i), x);
  return model.outlet(x);
}

TEST(ExplicitForward, ReshardsAtTheBoundary) {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [](const World& world) {
      ShardedBlocks sharded = shard_blocks(world);
      const torch::Tensor x = sharded.module->inlet(share_of(world, batch(1)));
      fsdp::forward(sharded.module->block(0), x);
      EXPECT_EQ(resident(sharded), root_bytes(world));
      EXPECT_THAT(sharded.blocks[0].describe(), HasSubstr("resting"));
      sharded.module->block(1).forward(x);  // by touch: until another unit is touched
      EXPECT_EQ(resident(sharded), root_bytes(world) + block_bytes(world));
      EXPECT_THAT(sharded.blocks[1].describe(), HasSubstr("unsharded"));
    });
  }
}

TEST(ExplicitForward, KeepsWhatTheStrategyKeeps) {
  run_ranks(2, [](const World& world) {
    ShardOptions options;
    options.strategy = Strategy::kOptimGrads;
    ShardedBlocks sharded = shard_blocks(world, options);
    const torch::Tensor x = sharded.module->inlet(share_of(world, batch(1)));
    fsdp::forward(sharded.module->block(0), x);
    EXPECT_EQ(resident(sharded), root_bytes(world) + block_bytes(world));
  });
}

// All blocks are resharded when the backward begins, the last one too: k = 1, the root.
TEST(ExplicitForward, TrainsLikeTheUnshardedModel) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [](const World& world) {
      ShardedBlocks sharded = shard_blocks(world);
      const auto plain = make_block_model();
      SGD optimizer(parameters(*sharded.module), {.lr = 0.05});
      torch::optim::SGD plain_optimizer(plain->parameters(), 0.05);
      for (uint64_t step = 0; step < 4; ++step) {
        sharded.root.reset_counters();
        forward_with_boundaries(*sharded.module, share_of(world, batch(step))).square().mean().backward();
        loss_of(*plain, batch(step)).backward();
        expect_same_gradients(*sharded.module, *plain);
        EXPECT_LE(sharded.root.counters().gathers, world.size == 1 ? 0 : 2 * 4 - 1);
        optimizer.step();
        plain_optimizer.step();
        zero_grad(*sharded.module);
        plain_optimizer.zero_grad();
        EXPECT_EQ(resident(sharded), 0);
      }
      expect_same_weights(*sharded.module, *plain);
    });
  }
}

ShardOptions bf16_options(bool cast_inputs, std::optional<at::ScalarType> output) {
  ShardOptions options;
  options.precision = Precision::bf16();
  options.precision.cast_inputs = cast_inputs;
  options.precision.output = output;
  return options;
}

TEST(ExplicitForward, CastsInputsAndOutputs) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world, bf16_options(true, at::kFloat));
    const torch::Tensor rows = share_of(world, batch(1));
    const torch::Tensor output = fsdp::forward(*sharded.module, rows);
    EXPECT_EQ(output.scalar_type(), at::kFloat);
    EXPECT_TRUE(torch::equal(output, sharded.module->forward(rows.to(at::kBFloat16)).to(at::kFloat)));
    output.square().mean().backward();
    for (const torch::Tensor& leaf : parameters(*sharded.module)) EXPECT_TRUE(leaf.grad().defined());
  });
}

TEST(ExplicitForward, WithoutACastInputsPassAsTheyAre) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world, bf16_options(false, std::nullopt));
    const torch::Tensor rows = share_of(world, batch(1));
    EXPECT_THROW(fsdp::forward(*sharded.module, rows), c10::Error);  // fp32 rows, bf16 weights
    EXPECT_EQ(fsdp::forward(*sharded.module, rows.to(at::kBFloat16)).scalar_type(), at::kBFloat16);
  });
}

struct Writer : nn::Module {
  Writer() { weight = register_parameter("weight", torch::ones({5})); }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::NoGradGuard no_grad;
    weight.mul_(2);
    return x * 2;
  }
  torch::Tensor weight;
};

TEST(ExplicitForward, ThrowsWhatHappenedInsideAtOnce) {
  run_ranks(2, [](const World& world) {
    Writer model;
    fully_shard(model, Mesh::shard(world));
    EXPECT_THAT(error_of([&] { fsdp::forward(model, share_of(world, batch(1))); }),
                AllOf(HasSubstr("aten::mul_"), HasSubstr("'weight'")));
  });
}

TEST(ExplicitForward, OfAModuleThatIsNoUnitIsAnError) {
  run_ranks(1, [](const World& world) {
    const auto plain = make_block_model();
    EXPECT_THAT(error_of([&] { fsdp::forward(*plain, batch(1)); }), HasSubstr("is no unit"));
    ShardedBlocks sharded = shard_blocks(world);
    EXPECT_THAT(error_of([&] { fsdp::forward(*sharded.module->block(0).up, batch(1, 12, 6)); }),
                HasSubstr("is no unit"));
  });
}

// ---- fsdp::touch

TEST(ExplicitTouch, GathersTheUnitOfEachTensor) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    const torch::Tensor weight = sharded.module->block(1).up->weight;
    touch({torch::ones({3}), weight});
    EXPECT_EQ(resident(sharded), block_bytes(world));
    const auto plain = make_block_model();
    const torch::Tensor expected = plain->block(1).up->weight;
    EXPECT_TRUE(std::equal(weight.const_data_ptr<float>(), weight.const_data_ptr<float>() + weight.numel(),
                           expected.const_data_ptr<float>()));
    touch({sharded.module->block(2).down->bias});  // as an operator would: the other unit is no longer needed
    EXPECT_EQ(resident(sharded), block_bytes(world));
    EXPECT_EQ(sharded.root.counters().gathers, 2);
    touch({torch::ones({3})});
    EXPECT_EQ(sharded.root.counters().gathers, 2);
  });
}

TEST(ExplicitTouch, AnAsynchronousUnshardIsOneGatherWhoeverWaitsForIt) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    const torch::Tensor rows = share_of(world, batch(7));
    const torch::Tensor expected = make_block_model()->forward(rows);
    UnshardHandle handle = sharded.blocks[1].unshard_async();
    handle.wait();
    handle.wait();
    EXPECT_EQ(sharded.root.counters().gathers, 1);
    EXPECT_EQ(resident(sharded), block_bytes(world));
    const float value = sharded.module->block(1).up->weight.const_data_ptr<float>()[0];
    EXPECT_EQ(value, make_block_model()->block(1).up->weight[0][0].item<float>());
    sharded.blocks[1].reshard();
    EXPECT_EQ(resident(sharded), 0);
    sharded.blocks[0].unshard_async();  // the forward waits for it
    EXPECT_TRUE(torch::allclose(sharded.module->forward(rows), expected, 1e-5, 1e-6));
    EXPECT_EQ(sharded.root.counters().gathers, 1 + 4);
  });
}

TEST(ExplicitTouch, FromAnotherThreadIsAnErrorThere) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    std::string text;
    std::thread([&] { text = error_of([&] { touch({sharded.module->block(0).down->weight}); }); }).join();
    EXPECT_THAT(text, AllOf(HasSubstr("'layers.0.down.weight'"), HasSubstr("belongs to thread")));
    zero_grad(*sharded.module);
    EXPECT_EQ(resident(sharded), 0);
    const torch::Tensor rows = share_of(world, batch(7));
    EXPECT_TRUE(torch::allclose(sharded.module->forward(rows), make_block_model()->forward(rows), 1e-5, 1e-6));
  });
}

// ---- deferred construction

// One rank: ranks are threads here, which share torch's generator.
TEST(DeferredConstruction, GivesTheWeightsOfAnOrdinaryOne) {
  run_ranks(1, [](const World& world) {
    torch::manual_seed(testing::kModelSeed);
    const auto deferred_model = fsdp::deferred([] { return std::make_shared<BlockModel>(3); });
    EXPECT_TRUE(is_deferred(deferred_model->block(0).up->weight));
    for (size_t i = 0; i < 3; ++i) {
      fully_shard(deferred_model->block(i), Mesh::shard(world));
      EXPECT_FALSE(is_deferred(deferred_model->block(i).up->weight));
    }
    EXPECT_TRUE(is_deferred(deferred_model->outlet->weight));
    const Unit root = fully_shard(*deferred_model, Mesh::shard(world));
    const auto plain = make_block_model();
    expect_same_weights(*deferred_model, *plain, 0);
    parameters(*deferred_model);
    loss_of(*deferred_model, batch(1)).backward();
    loss_of(*plain, batch(1)).backward();
    expect_same_gradients(*deferred_model, *plain);
  });
}

}  // namespace
}  // namespace fsdp::boundaries_test
