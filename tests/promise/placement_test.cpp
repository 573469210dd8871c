// Where parameters lie: whole on every rank one by one, left alone, or cut over meshes of several axes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "fsdp/comm/collectives.h"
#include "fsdp/fsdp.h"
#include "tests/io/temporary_folder.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"
#include "tests/support/worlds.h"

namespace fsdp::placement_test {
namespace {

using ::testing::AllOf;
using testing::batch;
using testing::BlockModel;
using testing::error_of;
using testing::expect_same_gradients;
using testing::expect_same_weights;
using testing::for_strategies;
using ::testing::HasSubstr;
using testing::loss_of;
using testing::make_block_model;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

// Three steps of a sharded model and its twin.
void expect_trains_like_its_twin(const World& world, ShardedBlocks& sharded) {
  const auto twin = make_block_model();
  AdamW optimizer(parameters(*sharded.module), {.lr = 0.02});
  torch::optim::AdamW twins(twin->parameters(), torch::optim::AdamWOptions(0.02).weight_decay(0.01));
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    loss_of(*sharded.module, share_of(world, batch(seed))).backward();
    loss_of(*twin, batch(seed)).backward();
    expect_same_gradients(*sharded.module, *twin);
    EXPECT_NEAR(clip_grad_norm_(*sharded.module, 0.1).item<double>(),
                torch::nn::utils::clip_grad_norm_(twin->parameters(), 0.1), 1e-5);
    optimizer.step();
    twins.step();
    zero_grad(*sharded.module);
    twin->zero_grad();
  }
  expect_same_weights(*sharded.module, *twin, 1e-4);
}

// ---- ShardOptions::replicate

bool is_bias(const std::string& name) { return name.ends_with("bias"); }

void expect_biases_whole(const torch::nn::Module& module) {
  const auto whole = make_block_model();
  const auto shapes = whole->named_parameters();
  for (const auto& [name, leaf] : named_parameters(module)) {
    if (is_bias(name)) {
      EXPECT_EQ(leaf.numel(), shapes[name].numel()) << name;
    }
  }
}

TEST(Replicate, ChosenParametersStayWholeAndTrainLikeTheOthers) {
  ShardOptions biases;
  biases.replicate = is_bias;
  for_strategies(
      [](const World& world, const ShardOptions& options) {
        ShardedBlocks sharded = shard_blocks(world, options);
        expect_biases_whole(*sharded.module);
        expect_trains_like_its_twin(world, sharded);
      },
      biases);
}

TEST(Replicate, OnMeshesWithReplicasAndInBf16) {
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim}) {
    SCOPED_TRACE(name(strategy));
    run_ranks(4, [&](const World& world) {
      ShardOptions options;
      options.strategy = strategy;
      options.replicate = is_bias;
      ShardedBlocks sharded = shard_blocks(Mesh(world, {{"replicate", 2}, {"shard", 2}}), options);
      expect_biases_whole(*sharded.module);
      expect_trains_like_its_twin(world, sharded);
    });
  }
}

// Those that every rank has whole are reduced in the last microbatch, the others in each.
TEST(Replicate, UnderMicrobatches) {
  run_ranks(3, [](const World& world) {
    ShardOptions options;
    options.replicate = is_bias;
    ShardedBlocks sharded = shard_blocks(world, options);
    parameters(*sharded.module);  // gradients are looked at without an optimizer
    const auto twin = make_block_model();
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const Microbatch scope(sharded.root, seed == 3);
      loss_of(*sharded.module, share_of(world, batch(seed))).backward();
      loss_of(*twin, batch(seed)).backward();
    }
    expect_same_gradients(*sharded.module, *twin);
  });
}

TEST(Replicate, CheckpointsAreReadWithoutIt) {
  const io::TemporaryFolder folder;
  run_ranks(3, [&](const World& world) {
    ShardOptions options;
    options.replicate = is_bias;
    ShardedBlocks sharded = shard_blocks(world, options);
    AdamW optimizer(parameters(*sharded.module), {.lr = 0.02});
    loss_of(*sharded.module, share_of(world, batch(1))).backward();
    optimizer.step();
    checkpoint::save(folder.path() / "step-1", {.model = *sharded.module, .optimizer = optimizer});
  });
  const auto twin = make_block_model();
  torch::optim::AdamW twins(twin->parameters(), torch::optim::AdamWOptions(0.02).weight_decay(0.01));
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    twin->zero_grad();
    loss_of(*twin, batch(seed)).backward();
    twins.step();
  }
  run_ranks(2, [&](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    AdamW optimizer(parameters(*sharded.module), {.lr = 0.02});
    checkpoint::load(folder.path() / "step-1", {.model = *sharded.module, .optimizer = optimizer});
    loss_of(*sharded.module, share_of(world, batch(2))).backward();
    optimizer.step();
    expect_same_weights(*sharded.module, *twin, 1e-4);
  });
}

TEST(Replicate, RanksThatChooseOthersAreRefused) {
  run_ranks(2, [](const World& world) {
    ShardOptions options;
    options.replicate = [&](const std::string& name) { return world.rank == 0 && is_bias(name); };
    EXPECT_THAT(error_of([&] { shard_blocks(world, options); }),
                AllOf(HasSubstr("rank 1"), HasSubstr("other parameters, shapes, dtypes or options")));
  });
}

TEST(Replicate, PlaceOfTellsWhichOnesAreWhole) {
  for (const int size : {1, 2, 3}) {
    run_ranks(size, [](const World& world) {
      ShardOptions options;
      options.replicate = is_bias;
      ShardedBlocks sharded = shard_blocks(world, options);
      for (const auto& [name, leaf] : named_parameters(*sharded.module)) {
        const auto place = place_of(leaf);
        ASSERT_TRUE(place.has_value()) << name;
        EXPECT_EQ(place->name, name);
        EXPECT_EQ(place->unit, name.starts_with("layers.") ? name.substr(0, 8) : "root");
        const bool whole = is_bias(name) || world.size == 1;
        EXPECT_EQ(place->main_weight, whole ? Placement::kReplicate : Placement::kShard) << name;
        EXPECT_EQ(place->range.begin, local_range(leaf).begin);
        EXPECT_EQ(place->range.end - place->range.begin, leaf.numel());
        const auto of_parameter = place_of(sharded.module->named_parameters()[name]);
        ASSERT_TRUE(of_parameter.has_value()) << name;
        EXPECT_EQ(of_parameter->name, name);
        EXPECT_EQ(of_parameter->offset, place->offset);
      }
      // Two groups: weights begin one buffer, biases the other.
      EXPECT_EQ(place_of(sharded.module->block(1).up->weight)->offset, 0);
      EXPECT_EQ(place_of(sharded.module->block(1).up->bias)->offset, 0);
      EXPECT_GE(place_of(sharded.module->block(1).down->bias)->offset, 18);
      EXPECT_FALSE(place_of(torch::ones({2})).has_value());
    });
  }
}

// ---- ShardOptions::ignored_gradients

ShardedBlocks shard_without_inlet(const World& world, const ShardOptions& base) {
  const auto module = make_block_model();
  ShardOptions options = base;
  options.ignored_parameters = {module->inlet->weight, module->inlet->bias};
  const Mesh mesh = Mesh::shard(world);
  std::vector<Unit> blocks;
  for (const auto& layer : *module->layers) blocks.push_back(fully_shard(*layer, mesh, options));
  return {module, blocks, fully_shard(*module, mesh, options)};
}

ShardOptions averaging(Strategy strategy) {
  ShardOptions options;
  options.strategy = strategy;
  options.ignored_gradients = IgnoredGradients::kMean;
  return options;
}

TEST(IgnoredGradients, AreTheMeanOverTheRanks) {
  for (const Strategy strategy : {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGradsParams}) {
    for (const int size : {1, 2, 3}) {
      SCOPED_TRACE(c10::str(name(strategy), ", world ", size));
      run_ranks(size, [&](const World& world) {
        ShardedBlocks sharded = shard_without_inlet(world, averaging(strategy));
        expect_trains_like_its_twin(world, sharded);
      });
    }
  }
}

// Without kMean they differ, and still all ranks clip by one factor: that of the mean of the ranks' sums.
TEST(IgnoredGradients, ThatDifferClipTheSameOnAllRanks) {
  for (const double norm_type : {2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    run_ranks(3, [norm_type](const World& world) {
      ShardedBlocks sharded = shard_without_inlet(world, {});
      parameters(*sharded.module);
      loss_of(*sharded.module, share_of(world, batch(1))).backward();
      const auto twin = make_block_model();
      loss_of(*twin, batch(1)).backward();
      const auto power_of = [norm_type](const torch::Tensor& gradient) {
        const torch::Tensor sizes = gradient.to(torch::kDouble).abs();
        return std::isinf(norm_type) ? sizes.max() : sizes.pow(norm_type).sum();
      };
      torch::Tensor mine = torch::zeros({1}, torch::kDouble), rest = torch::zeros({1}, torch::kDouble);
      const auto join = [norm_type](torch::Tensor& sum, const torch::Tensor& power) {
        sum = std::isinf(norm_type) ? torch::maximum(sum, power.view({1})) : sum + power;
      };
      for (const auto& parameter : sharded.module->inlet->parameters()) join(mine, power_of(parameter.grad()));
      for (const auto& item : twin->named_parameters()) {
        if (!item.key().starts_with("inlet.")) join(rest, power_of(item.value().grad()));
      }
      std::vector<torch::Tensor> of_ranks;
      for (const std::string& text : gather_strings(world, c10::str(mine.item<double>())))
        of_ranks.push_back(torch::full({1}, std::stod(text), torch::kDouble));
      const torch::Tensor all = torch::cat(of_ranks);
      join(rest, std::isinf(norm_type) ? all.max() : all.mean());
      const double expected =
          std::isinf(norm_type) ? rest.item<double>() : std::pow(rest.item<double>(), 1 / norm_type);
      const auto norm = clip_grad_norm_(*sharded.module, 1e-3, norm_type).item<float>();
      EXPECT_NEAR(norm, expected, 1e-4 * expected);
      for (const std::string& text : gather_strings(world, c10::str(norm))) EXPECT_EQ(text, c10::str(norm));
    });
  }
}

TEST(IgnoredGradients, AddUpOverBackwardsAndMicrobatches) {
  run_ranks(3, [](const World& world) {
    ShardedBlocks sharded = shard_without_inlet(world, averaging(Strategy::kOptimGradsParams));
    parameters(*sharded.module);  // gradients are looked at without an optimizer
    const auto twin = make_block_model();
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      const Microbatch scope(sharded.root, seed % 2 == 0);
      loss_of(*sharded.module, share_of(world, batch(seed))).backward();
      loss_of(*twin, batch(seed)).backward();
    }
    expect_same_gradients(*sharded.module, *twin);
  });
}

TEST(IgnoredGradients, AreLeftAloneByDefaultAndUnderNoSync) {
  run_ranks(2, [](const World& world) {
    for (const bool averaged : {false, true}) {
      ShardOptions options;
      if (averaged) options.ignored_gradients = IgnoredGradients::kMean;
      ShardedBlocks sharded = shard_without_inlet(world, options);
      const auto twin = make_block_model();
      sharded.root.set_requires_gradient_sync(!averaged);
      loss_of(*sharded.module, share_of(world, batch(1))).backward();
      loss_of(*twin, share_of(world, batch(1))).backward();
      EXPECT_TRUE(torch::allclose(sharded.module->inlet->weight.grad(), twin->inlet->weight.grad(), 1e-5, 1e-6));
    }
  });
}

struct Branched : torch::nn::Module {
  Branched() {
    linear = register_module("linear", torch::nn::Linear(5, 1));
    extra = register_parameter("extra", torch::ones({2}));
    never = register_parameter("never", torch::ones({2}));
    const torch::NoGradGuard no_grad;
    linear->weight.fill_(0.5);
    linear->bias.fill_(0);
  }
  torch::nn::Linear linear{nullptr};
  torch::Tensor extra, never;
};

TEST(IgnoredGradients, RanksWithoutOneCountAsZero) {
  run_ranks(3, [](const World& world) {
    Branched module;
    ShardOptions options = averaging(Strategy::kOptimGradsParams);
    options.ignored_parameters = {module.extra, module.never};
    fully_shard(module, Mesh::shard(world), options);
    torch::Tensor loss = module.linear(batch(1)).mean();
    if (world.rank == 1) loss = loss + 6 * module.extra.sum();
    loss.backward();
    EXPECT_TRUE(torch::equal(module.extra.grad(), torch::full({2}, 2.0F)));
    EXPECT_FALSE(module.never.grad().defined());
  });
}

// ---- meshes of more axes

TEST(FlattenedMesh, ShardsOverTwoAxesInAnyOrder) {
  for (const auto& axes : std::vector<std::vector<std::string>>{{"a", "b"}, {"b", "a"}}) {
    run_ranks(4, [&](const World& world) {
      const Mesh mesh = Mesh(world, {{"a", 2}, {"b", 2}}).flattened(axes, "shard");
      ShardedBlocks sharded = shard_blocks(mesh, {}, 3);
      expect_trains_like_its_twin(world, sharded);
    });
  }
}

TEST(FlattenedMesh, ReplicatesOverTwoAxes) {
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridOptim}) {
    run_ranks(4, [&](const World& world) {
      const Mesh grid(world, {{"pods", 2}, {"x", 1}, {"cards", 2}});
      const Mesh mesh = grid.flattened({"cards"}, "shard").flattened({"pods", "x"}, "replicate");
      ShardOptions options;
      options.strategy = strategy;
      ShardedBlocks sharded = shard_blocks(mesh, options, 3);
      expect_trains_like_its_twin(world, sharded);
    });
  }
}

TEST(FlattenedMesh, AxesThatNobodyNamedAreRefused) {
  run_ranks(4, [](const World& world) {
    const Mesh mesh(world, {{"replicate", 1}, {"x", 2}, {"shard", 2}});
    EXPECT_THAT(error_of([&] { shard_blocks(mesh, {}, 3); }),
                AllOf(HasSubstr("axis 'x' has 2"), HasSubstr("Mesh::flattened()")));
  });
}

}  // namespace
}  // namespace fsdp::placement_test
