// MainWeights::kOnDisk: the bits of the run in memory, for state that is in a file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "fsdp/buffer/disk_memory.h"
#include "fsdp/fsdp.h"
#include "tests/io/temporary_folder.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"
#include "tests/support/worlds.h"

namespace fsdp::offload_test {
namespace {

using testing::batch;
using testing::error_of;
using testing::for_strategies;
using ::testing::HasSubstr;
using testing::loss_of;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

ShardOptions on_disk(ShardOptions options, const io::TemporaryFolder& folder) {
  options.main_weights = MainWeights::kOnDisk;
  options.offload_folder = folder.path();
  return options;
}

void expect_same_bits(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto wanted = named_parameters(b);
  size_t i = 0;
  for (const auto& [name, leaf] : named_parameters(a)) {
    EXPECT_TRUE(torch::equal(leaf, wanted[i].second)) << name;
    ASSERT_EQ(leaf.grad().defined(), wanted[i].second.grad().defined()) << name;
    if (leaf.grad().defined()) {
      EXPECT_TRUE(torch::equal(leaf.grad(), wanted[i].second.grad())) << name;
    }
    ++i;
  }
}

// Where the state of a model that is on a disk has to be.
void expect_on_disk(const torch::nn::Module& module) {
  for (const torch::Tensor& leaf : parameters(module)) {
    if (leaf.numel() == 0) continue;
    EXPECT_TRUE(is_on_disk(leaf));
    if (leaf.grad().defined()) {
      EXPECT_TRUE(is_on_disk(leaf.grad()));
    }
  }
}

void backward_of_step(ShardedBlocks& sharded, const World& world, uint64_t step, at::ScalarType dtype) {
  for (uint64_t i = 0; i < 2; ++i) {
    const Microbatch scope(sharded.root, i == 1);
    loss_of(*sharded.module, share_of(world, batch(10 * step + i)).to(dtype)).backward();
  }
}

// Two microbatches a step, clipped.
template <class Optimizer>
void train(ShardedBlocks& sharded, Optimizer& optimizer, const World& world, at::ScalarType dtype = at::kFloat) {
  for (uint64_t step = 0; step < 3; ++step) {
    backward_of_step(sharded, world, step, dtype);
    clip_grad_norm_(*sharded.module, 0.1);
    optimizer.step();
    if (step < 2) zero_grad(*sharded.module);
  }
}

template <class Make>
void expect_same_training(const World& world, const ShardOptions& options, const io::TemporaryFolder& folder,
                          const Make& make_optimizer, at::ScalarType dtype = at::kFloat) {
  ShardedBlocks memory = shard_blocks(world, options);
  ShardedBlocks disk = shard_blocks(world, on_disk(options, folder));
  auto in_memory = make_optimizer(*memory.module);
  auto on_disk = make_optimizer(*disk.module);
  train(memory, in_memory, world, dtype);
  train(disk, on_disk, world, dtype);
  expect_on_disk(*disk.module);
  expect_same_bits(*disk.module, *memory.module);
}

AdamW adamw_of(const torch::nn::Module& module) { return {parameters(module), {.lr = 0.02}}; }

TEST(DiskOffload, TrainsWithTheBitsOfTheRunInMemory) {
  const io::TemporaryFolder folder;
  for_strategies(
      [&](const World& world, const ShardOptions& options) { expect_same_training(world, options, folder, adamw_of); });
}

TEST(DiskOffload, InBf16) {
  const io::TemporaryFolder folder;
  ShardOptions bf16;
  bf16.precision = Precision::bf16();
  for_strategies(
      [&](const World& world, const ShardOptions& options) {
        expect_same_training(world, options, folder, adamw_of, at::kBFloat16);
      },
      bf16);
}

TEST(DiskOffload, OnMeshesWithReplicas) {
  const io::TemporaryFolder folder;
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim}) {
    SCOPED_TRACE(name(strategy));
    run_ranks(4, [&](const World& world) {
      ShardOptions options;
      options.strategy = strategy;
      const Mesh mesh(world, {{"replicate", 2}, {"shard", 2}});
      ShardedBlocks memory = shard_blocks(mesh, options, 3);
      ShardedBlocks disk = shard_blocks(mesh, on_disk(options, folder), 3);
      AdamW in_memory = adamw_of(*memory.module), on_disk = adamw_of(*disk.module);
      train(memory, in_memory, world);
      train(disk, on_disk, world);
      expect_on_disk(*disk.module);
      expect_same_bits(*disk.module, *memory.module);
    });
  }
}

TEST(DiskOffload, OtherOptimizers) {
  const io::TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    expect_same_training(world, {}, folder, [](const torch::nn::Module& module) {
      return SGD(parameters(module), {.lr = 0.02, .momentum = 0.9});
    });
    expect_same_training(world, {}, folder,
                         [](const torch::nn::Module& module) { return Lion(parameters(module), {.lr = 0.002}); });
    expect_same_training(world, {}, folder, [](const torch::nn::Module& module) {
      return AdamW(parameters(module), {.lr = 0.02, .exp_avg_dtype = at::kBFloat16});
    });
    expect_same_training(world, {}, folder, [](const torch::nn::Module& module) {  // its moments stay in memory
      return torch::optim::AdamW(parameters(module), torch::optim::AdamWOptions(0.02));
    });
  });
}

// Longer than a piece, some with a copy in bf16, some without weight decay so that runs end anywhere. Both ways to
// reach a disk.
TEST(DiskOffload, WeightsLongerThanAPiece) {
  const io::TemporaryFolder folder;
  for (const char* access : {"direct", "mapped"}) {
    setenv("FSDP_OFFLOAD", access, /*overwrite=*/1);
    run_ranks(2, [&](const World& world) {
      const auto train_long = [&](const ShardOptions& options) {
        torch::nn::Sequential net = testing::make_seeded(3, [] {
          return torch::nn::Sequential(torch::nn::Linear(31, 80001), torch::nn::Tanh(), torch::nn::Linear(80001, 3));
        });
        fully_shard(*net, Mesh::shard(world), options);
        std::vector<torch::Tensor> leaves = parameters(*net);
        AdamW optimizer(std::vector<AdamWGroup>{{{leaves[0], leaves[2]}, {.lr = 0.02}},
                                                {{leaves[1], leaves[3]}, {.lr = 0.02, .weight_decay = 0}}});
        for (uint64_t step = 0; step < 2; ++step) {
          const torch::Tensor x =
              torch::randn({4, 31}, testing::generator(10 * step + static_cast<uint64_t>(world.rank)));
          net->forward(options.precision.param ? x.to(*options.precision.param) : x).square().mean().backward();
          clip_grad_norm_(*net, 0.1);
          optimizer.step();
          if (step == 0) zero_grad(*net);
        }
        for (torch::Tensor& leaf : leaves) leaf = torch::cat({leaf.detach().flatten(), leaf.grad().flatten()});
        return leaves;
      };
      for (const Precision& precision : {Precision(), Precision::bf16()}) {
        const auto memory = train_long({.precision = precision});
        const auto disk = train_long(on_disk({.precision = precision}, folder));
        for (size_t i = 0; i < memory.size(); ++i) EXPECT_TRUE(torch::equal(disk[i], memory[i])) << access << i;
      }
    });
  }
  unsetenv("FSDP_OFFLOAD");
}

constexpr LayoutOptions kInBlocks{.granularity = layout::Granularity::kBlock, .block = kCodeBlock};

TEST(DiskOffload, MomentsOf8Bits) {
  const io::TemporaryFolder folder;
  for_strategies(
      [&](const World& world, const ShardOptions& options) {
        expect_same_training(world, options, folder, [](const torch::nn::Module& module) {
          return LowBitAdamW(parameters(module), {.lr = 0.02});
        });
      },
      {.layout = kInBlocks});
}

// Two ranks, by gradients that are the same in both.
std::vector<torch::Tensor> train_24_bits(const World& world, const ShardOptions& options, int64_t hidden) {
  torch::nn::Sequential net = testing::make_seeded(3, [&] {
    return torch::nn::Sequential(torch::nn::Linear(32, hidden), torch::nn::Tanh(), torch::nn::Linear(hidden, 24));
  });
  net->to(torch::kBFloat16);
  fully_shard(*net, Mesh::shard(world), options);
  LowBitAdamW optimizer(parameters(*net), {.lr = 0.02, .digits = WeightDigits::kEightBitsAtRandom});
  for (uint64_t step = 0; step < 3; ++step) {
    const torch::Tensor x = torch::randn({8, 32}, testing::generator(step)).to(torch::kBFloat16);
    net->forward(x).to(torch::kFloat).square().mean().backward();
    optimizer.step();
    zero_grad(*net);
  }
  std::vector<torch::Tensor> leaves;
  for (const torch::Tensor& leaf : parameters(*net)) {
    EXPECT_EQ(leaf.numel() > 0 && is_on_disk(leaf), leaf.numel() > 0 && !options.offload_folder.empty());
    leaves.push_back(leaf.detach().clone());
  }
  return leaves;
}

// Of weights that go over the disk in one piece, and of longer ones.
TEST(DiskOffload, WeightsOf24Bits) {
  const io::TemporaryFolder folder;
  for (const int64_t hidden : {40, 140000}) {
    run_ranks(2, [&](const World& world) {
      const ShardOptions options{.layout = kInBlocks};
      const auto memory = train_24_bits(world, options, hidden);
      const auto disk = train_24_bits(world, on_disk(options, folder), hidden);
      for (size_t i = 0; i < memory.size(); ++i) EXPECT_TRUE(torch::equal(disk[i], memory[i])) << i;
    });
  }
}

// Then no gradient goes to the disk.
TEST(DiskOffload, UpdatesInTheBackward) {
  const io::TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    ShardedBlocks memory = shard_blocks(world);
    ShardedBlocks disk = shard_blocks(world, on_disk({}, folder));
    AdamW in_memory = adamw_of(*memory.module), on_disk = adamw_of(*disk.module);
    for (auto* each : {&in_memory, &on_disk}) each->step_in_backward();
    for (uint64_t step = 0; step < 3; ++step) {
      backward_of_step(memory, world, step, at::kFloat);
      backward_of_step(disk, world, step, at::kFloat);
    }
    expect_on_disk(*disk.module);
    expect_same_bits(*disk.module, *memory.module);
  });
}

TEST(DiskOffload, CheckpointsGoToModelsInMemoryAndBack) {
  const io::TemporaryFolder folder, saved;
  for (const bool begins_on_disk : {true, false}) {
    const auto options_of = [&](bool is_on_disk) { return is_on_disk ? on_disk({}, folder) : ShardOptions(); };
    const auto step_folder = saved / (begins_on_disk ? "a/step-3" : "b/step-3");
    run_ranks(2, [&](const World& world) {
      ShardedBlocks sharded = shard_blocks(world, options_of(begins_on_disk));
      AdamW optimizer = adamw_of(*sharded.module);
      train(sharded, optimizer, world);
      checkpoint::Saver saver(world, step_folder.parent_path());  // which would write behind a run in memory
      saver.start(3, {.model = *sharded.module, .optimizer = optimizer});
      saver.finish();
    });
    run_ranks(3, [&](const World& world) {
      ShardedBlocks one = shard_blocks(world, options_of(begins_on_disk));
      ShardedBlocks other = shard_blocks(world, options_of(!begins_on_disk));
      for (ShardedBlocks* each : {&one, &other}) {
        AdamW optimizer = adamw_of(*each->module);
        checkpoint::load(step_folder, {.model = *each->module, .optimizer = optimizer});
        train(*each, optimizer, world);
      }
      expect_same_bits(*one.module, *other.module);
    });
  }
}

TEST(DiskOffload, WritesToWholeWeightsReachIt) {
  const io::TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    ShardedBlocks sharded = shard_blocks(world, on_disk({}, folder));
    {
      const torch::NoGradGuard no_grad;
      const auto scope = full_parameters(sharded.root, WriteBack::kYes);
      for (torch::Tensor& weight : sharded.module->parameters()) weight.fill_(0.25);
    }
    for (const torch::Tensor& leaf : parameters(*sharded.module)) {
      EXPECT_TRUE(torch::equal(leaf, torch::full_like(leaf, 0.25)));
    }
  });
}

TEST(DiskOffload, AFolderAndItsUseGoTogether) {
  const io::TemporaryFolder folder;
  run_ranks(1, [&](const World& world) {
    ShardOptions options;
    options.main_weights = MainWeights::kOnDisk;
    EXPECT_THAT(error_of([&] { shard_blocks(world, options); }), HasSubstr("offload_folder"));
    options = {};
    options.offload_folder = folder.path();
    EXPECT_THAT(error_of([&] { shard_blocks(world, options); }), HasSubstr("offload_folder"));
  });
}

}  // namespace
}  // namespace fsdp::offload_test
