// What can be asked of units around a step: lists of units to gather ahead, whole models to read and write, buffers
// that are equal, optimizers side by side or in the backward, autocast.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/base/trace.h"
#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::unit_steps_test {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::batch;
using testing::BlockModel;
using ::testing::ElementsAre;
using testing::error_of;
using testing::expect_same_gradients;
using testing::expect_same_weights;
using ::testing::HasSubstr;
using testing::loss_of;
using testing::make_block_model;
using testing::make_seeded;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

constexpr double kLearningRate = 0.05;

int64_t resident(const Unit& unit) { return unit.counters().resident_unsharded_bytes; }

std::vector<torch::Tensor> copies_of_leaves(const nn::Module& module) {
  std::vector<torch::Tensor> copies;
  for (const torch::Tensor& leaf : parameters(module)) copies.push_back(leaf.detach().clone());
  return copies;
}

void expect_same_bits(const std::vector<torch::Tensor>& actual, const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(torch::equal(actual[i], expected[i])) << "leaf " << i;
}

// ---- lists of units to gather ahead

std::vector<std::string> gathered_in(const TraceCollector& trace) {
  std::vector<std::string> units;
  for (const TraceEvent& event : trace.events()) {
    if (event.name == "unshard") units.push_back(event.unit);
  }
  return units;
}

struct GatherOrder {
  std::vector<std::string> forward;
  std::vector<std::string> backward;
  std::vector<torch::Tensor> weights;
};

// Of the third step.
GatherOrder train_with(const World& world, const std::function<void(ShardedBlocks&)>& choose) {
  ShardedBlocks sharded = shard_blocks(world);
  choose(sharded);
  SGD optimizer(parameters(*sharded.module), {.lr = kLearningRate});
  GatherOrder order;
  for (uint64_t step = 0; step < 3; ++step) {
    TraceCollector trace;
    const torch::Tensor loss = loss_of(*sharded.module, share_of(world, batch(step)));
    order.forward = gathered_in(trace);
    trace.clear();
    loss.backward();
    order.backward = gathered_in(trace);
    optimizer.step();
    zero_grad(*sharded.module);
  }
  order.weights = copies_of_leaves(*sharded.module);
  return order;
}

TEST(PrefetchLists, ChangeTheOrderOfGathersAndNoBit) {
  run_ranks(2, [](const World& world) {
    const GatherOrder by_schedule = train_with(world, [](ShardedBlocks&) {});
    EXPECT_THAT(by_schedule.forward, ElementsAre("root", "layers.0", "layers.1", "layers.2"));
    EXPECT_THAT(by_schedule.backward, ElementsAre("layers.1", "layers.0"));
    const GatherOrder by_list = train_with(world, [](ShardedBlocks& sharded) {
      sharded.blocks[0].prefetch_in_forward({sharded.blocks[2], sharded.blocks[1]});
      sharded.blocks[2].prefetch_in_backward({sharded.blocks[0], sharded.blocks[1]});
    });
    EXPECT_THAT(by_list.forward, ElementsAre("root", "layers.0", "layers.2", "layers.1"));
    EXPECT_THAT(by_list.backward, ElementsAre("layers.0", "layers.1"));
    expect_same_bits(by_list.weights, by_schedule.weights);
    const GatherOrder again = train_with(world, [](ShardedBlocks& sharded) {
      sharded.blocks[0].prefetch_in_forward({sharded.blocks[2], sharded.blocks[1]});
      sharded.blocks[0].prefetch_in_forward({});
    });
    EXPECT_EQ(again.forward, by_schedule.forward);
  });
}

TEST(PrefetchLists, AUnitInItsOwnListIsRefused) {
  run_ranks(1, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    EXPECT_THAT(error_of([&] { sharded.blocks[1].prefetch_in_forward({sharded.blocks[1]}); }),
                AllOf(HasSubstr("'layers.1'"), HasSubstr("its own list")));
  });
}

// ---- the whole model, to read and to write

TEST(FullModel, OneRankAloneMayReadAllOfIt) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [](const World& world) {
      ShardedBlocks sharded = shard_blocks(world);
      const auto plain = make_block_model();
      {
        const FullParameters scope = full_parameters(sharded.root);
        const int64_t gathers = sharded.root.counters().gathers;
        EXPECT_EQ(gathers, world.size == 1 ? 0 : sharded.root.num_units());
        const auto expected = plain->named_parameters();
        for (const auto& item : sharded.module->named_parameters()) {
          if (world.rank == world.size - 1) {
            EXPECT_TRUE(torch::equal(item.value(), expected[item.key()])) << item.key();
          }
        }
        EXPECT_EQ(sharded.root.counters().gathers, gathers);
      }
      EXPECT_EQ(resident(sharded.root), 0);
    });
  }
}

void double_weights(BlockModel& model) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : model.parameters()) parameter.mul_(2);
}

TEST(FullModel, WhatIsWrittenIsWhatTrainsOn) {
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    for (const int ranks : {1, 2, 3}) {
      run_ranks(ranks, [&](const World& world) {
        SCOPED_TRACE(c10::str(name(strategy), ", ", ranks, " ranks"));
        ShardOptions options;
        options.strategy = strategy;
        ShardedBlocks sharded = shard_blocks(world, options);
        const auto plain = make_block_model();
        {
          const FullParameters scope = full_parameters(sharded.root, WriteBack::kYes);
          double_weights(*sharded.module);
        }
        double_weights(*plain);
        expect_same_weights(*sharded.module, *plain, 0);
        loss_of(*sharded.module, share_of(world, batch(1))).backward();
        loss_of(*plain, batch(1)).backward();
        expect_same_gradients(*sharded.module, *plain);
        EXPECT_EQ(resident(sharded.root), 0);
      });
    }
  }
}

TEST(FullModel, InMixedPrecisionWhatIsNotWrittenKeepsItsDigits) {
  for (const int ranks : {1, 3}) {
    run_ranks(ranks, [](const World& world) {
      ShardOptions options;
      options.precision = Precision::bf16();
      ShardedBlocks sharded = shard_blocks(world, options);
      const std::vector<torch::Tensor> before = copies_of_leaves(*sharded.module);
      {
        const FullParameters scope = full_parameters(sharded.root, WriteBack::kYes);
        const torch::NoGradGuard no_grad;
        sharded.module->block(1).up->weight.narrow(0, 0, 2).fill_(0.5);
      }
      const auto leaves = named_parameters(*sharded.module);
      for (size_t i = 0; i < leaves.size(); ++i) {
        torch::Tensor expected = before[i];
        const LocalRange range = local_range(leaves[i].second);
        if (leaves[i].first == "layers.1.up.weight" && range.begin < 2 * BlockModel::kWidth) {
          expected.slice(0, 0, std::min(range.end, 2 * BlockModel::kWidth) - range.begin).fill_(0.5);
        }
        EXPECT_TRUE(torch::equal(leaves[i].second, expected)) << leaves[i].first;
      }
    });
  }
}

// ---- buffers

struct Normed : nn::Module {
  Normed() {
    norm = register_module("norm", nn::BatchNorm1d(5));
    head = register_module("head", nn::Linear(5, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(norm(x)); }
  nn::BatchNorm1d norm{nullptr};
  nn::Linear head{nullptr};
};

// What BatchNorm1d with its usual momentum of 0.1 makes of the rows of each rank.
torch::Tensor next_mean(const World& world, const torch::Tensor& mean, const torch::Tensor& rows, int rank) {
  World place = world;
  place.rank = rank;
  return 0.9 * mean + 0.1 * share_of(place, rows).mean(0);
}

torch::Tensor expected_mean(const World& world, BufferSync sync, const torch::Tensor& mean, const torch::Tensor& rows) {
  if (sync == BufferSync::kPerRank) return next_mean(world, mean, rows, world.rank);
  if (sync == BufferSync::kBroadcast) return next_mean(world, mean, rows, 0);
  torch::Tensor sum = torch::zeros_like(mean);
  for (int rank = 0; rank < world.size; ++rank) sum += next_mean(world, mean, rows, rank);
  return sum / world.size;
}

TEST(Buffers, FollowTheirOptionAtTheEndOfEachStep) {
  for (const BufferSync sync : {BufferSync::kPerRank, BufferSync::kMean, BufferSync::kBroadcast}) {
    for (const int ranks : {1, 2, 3}) {
      run_ranks(ranks, [&](const World& world) {
        const auto model = make_seeded(5, [] { return std::make_shared<Normed>(); });
        ShardOptions options;
        options.buffers = sync;
        fully_shard(*model->norm, Mesh::shard(world), options);
        fully_shard(*model, Mesh::shard(world), options);
        parameters(*model);
        torch::Tensor expected = torch::zeros({5});
        for (uint64_t step = 0; step < 3; ++step) {
          model->forward(share_of(world, batch(step))).square().mean().backward();
          expected = expected_mean(world, sync, expected, batch(step));
          EXPECT_TRUE(torch::allclose(model->norm->running_mean, expected, 1e-5, 1e-6)) << "step " << step;
          EXPECT_EQ(model->norm->num_batches_tracked.item<int64_t>(), static_cast<int64_t>(step) + 1);
          zero_grad(*model);
        }
      });
    }
  }
}

TEST(Buffers, OfAccumulatedMicrobatchesAreMadeEqualInTheLast) {
  run_ranks(2, [](const World& world) {
    const auto model = make_seeded(5, [] { return std::make_shared<Normed>(); });
    ShardOptions options;
    options.buffers = BufferSync::kBroadcast;
    const Unit root = fully_shard(*model, Mesh::shard(world), options);
    parameters(*model);
    torch::Tensor mine = torch::zeros({5});
    torch::Tensor first = torch::zeros({5});
    for (const bool is_last : {false, true}) {
      const Microbatch scope(root, is_last);
      const torch::Tensor rows = batch(is_last ? 2 : 1);
      model->forward(share_of(world, rows)).square().mean().backward();
      mine = next_mean(world, mine, rows, world.rank);
      first = next_mean(world, first, rows, 0);
      EXPECT_TRUE(torch::allclose(model->norm->running_mean, is_last ? first : mine, 1e-5, 1e-6));
    }
  });
}

TEST(Buffers, CanBeMadeEqualByHand) {
  run_ranks(3, [](const World& world) {
    Normed model;
    for (const auto& [sync, value, count] :
         {std::tuple(BufferSync::kPerRank, world.rank + 1.0, 10 * world.rank), std::tuple(BufferSync::kMean, 2.0, 0),
          std::tuple(BufferSync::kBroadcast, 1.0, 0)}) {
      model.norm->running_var.fill_(world.rank + 1.0);
      model.norm->num_batches_tracked.fill_(10 * world.rank);
      sync_buffers(world, model, sync);
      EXPECT_TRUE(torch::allclose(model.norm->running_var, torch::full({5}, value)));
      EXPECT_EQ(model.norm->num_batches_tracked.item<int64_t>(), count);
    }
  });
}

// ---- optimizers

bool is_weight(const std::string& name) { return name.ends_with("weight"); }

template <class NamedTensors>
std::vector<torch::Tensor> chosen(const NamedTensors& named, bool weights) {
  std::vector<torch::Tensor> list;
  for (const auto& [name, tensor] : named) {
    if (is_weight(name) == weights) list.push_back(tensor);
  }
  return list;
}

std::vector<std::pair<std::string, torch::Tensor>> pairs_of(const nn::Module& module) {
  std::vector<std::pair<std::string, torch::Tensor>> list;
  for (const auto& item : module.named_parameters()) list.emplace_back(item.key(), item.value());
  return list;
}

TEST(Optimizers, TwoOfThemShareAUnit) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [](const World& world) {
      ShardedBlocks sharded = shard_blocks(world);
      const auto plain = make_block_model();
      const auto leaves = named_parameters(*sharded.module);
      AdamW adamw(chosen(leaves, true), {.lr = kLearningRate, .weight_decay = 0.1});
      SGD sgd(chosen(leaves, false), {.lr = kLearningRate, .momentum = 0.9});
      torch::optim::AdamW plain_adamw(chosen(pairs_of(*plain), true),
                                      torch::optim::AdamWOptions(kLearningRate).weight_decay(0.1));
      torch::optim::SGD plain_sgd(chosen(pairs_of(*plain), false),
                                  torch::optim::SGDOptions(kLearningRate).momentum(0.9));
      for (uint64_t step = 0; step < 4; ++step) {
        loss_of(*sharded.module, share_of(world, batch(step))).backward();
        loss_of(*plain, batch(step)).backward();
        adamw.step();
        sgd.step();
        plain_adamw.step();
        plain_sgd.step();
        zero_grad(*sharded.module);
        plain->zero_grad();
      }
      expect_same_weights(*sharded.module, *plain, 2e-5);
    });
  }
}

// Trains with two microbatches a step; `optimizer` updates in the backward or is stepped after it.
template <class Optimizer>
void train_accumulating(const World& world, ShardedBlocks& sharded, Optimizer& optimizer, bool in_backward) {
  for (uint64_t step = 0; step < 4; ++step) {
    for (const bool is_last : {false, true}) {
      const Microbatch scope(sharded.root, is_last);
      loss_of(*sharded.module, share_of(world, batch(10 * step + (is_last ? 1 : 0)))).backward();
    }
    EXPECT_EQ(sharded.root.resting_bytes().main_grad == 0, in_backward);
    for (const torch::Tensor& leaf : parameters(*sharded.module)) EXPECT_NE(leaf.grad().defined(), in_backward);
    if (in_backward) continue;
    optimizer.step();
    zero_grad(*sharded.module);
  }
}

template <class Optimizer, class Options>
void expect_step_in_backward_is_the_same_step(const Options& optimizer_options) {
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    for (const int ranks : {1, 2, 3}) {
      run_ranks(ranks, [&](const World& world) {
        SCOPED_TRACE(c10::str(name(strategy), ", ", ranks, " ranks"));
        ShardOptions options;
        options.strategy = strategy;
        ShardedBlocks after = shard_blocks(world, options);
        ShardedBlocks within = shard_blocks(world, options);
        Optimizer ordinary(parameters(*after.module), optimizer_options);
        Optimizer early(parameters(*within.module), optimizer_options);
        early.step_in_backward();
        train_accumulating(world, after, ordinary, /*in_backward=*/false);
        train_accumulating(world, within, early, /*in_backward=*/true);
        expect_same_bits(copies_of_leaves(*within.module), copies_of_leaves(*after.module));
        EXPECT_EQ(resident(within.root), 0);
      });
    }
  }
}

TEST(Optimizers, AStepInTheBackwardIsTheSameStepAndFreesGradients) {
  expect_step_in_backward_is_the_same_step<AdamW>(AdamWOptions{.lr = kLearningRate, .weight_decay = 0.1});
  expect_step_in_backward_is_the_same_step<SGD>(SGDOptions{.lr = kLearningRate, .momentum = 0.9});
}

TEST(Optimizers, ClippingAfterAStepInTheBackwardIsAnError) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    AdamW optimizer(parameters(*sharded.module), {.lr = kLearningRate});
    optimizer.step_in_backward();
    loss_of(*sharded.module, share_of(world, batch(1))).backward();
    EXPECT_THAT(error_of([&] { clip_grad_norm_(*sharded.module, 1.0); }), HasSubstr("step_in_backward"));
  });
}

TEST(Optimizers, OnlyOneMayUpdateAUnitInTheBackward) {
  run_ranks(1, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    const auto leaves = named_parameters(*sharded.module);
    AdamW adamw(chosen(leaves, true), {});
    SGD sgd(chosen(leaves, false), {});
    adamw.step_in_backward();
    EXPECT_THAT(error_of([&] { sgd.step_in_backward(); }), HasSubstr("by another optimizer already"));
  });
}

// ---- autocast

class Autocast {
 public:
  Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

torch::Tensor loss_under_autocast(BlockModel& model, const torch::Tensor& rows) {
  const Autocast scope;
  torch::Tensor output = model.forward(rows);
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  return output.to(at::kFloat).square().mean();
}

// The unsharded model computes each rank's rows by itself: a gradient of half the rows is rounded to bf16 once.
TEST(UnderAutocast, AnUnchangedModelTrainsLikeTheUnshardedOne) {
  for (const Strategy strategy : {Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    run_ranks(2, [&](const World& world) {
      SCOPED_TRACE(name(strategy));
      ShardOptions options;
      options.strategy = strategy;
      ShardedBlocks sharded = shard_blocks(world, options);
      const auto plain = make_block_model();
      SGD optimizer(parameters(*sharded.module), {.lr = kLearningRate});
      torch::optim::SGD plain_optimizer(plain->parameters(), kLearningRate);
      for (uint64_t step = 0; step < 4; ++step) {
        loss_under_autocast(*sharded.module, share_of(world, batch(step))).backward();
        World place = world;
        for (place.rank = 0; place.rank < 2; ++place.rank) {
          (loss_under_autocast(*plain, share_of(place, batch(step))) / 2).backward();
        }
        expect_same_gradients(*sharded.module, *plain);
        optimizer.step();
        plain_optimizer.step();
        zero_grad(*sharded.module);
        plain_optimizer.zero_grad();
        EXPECT_EQ(resident(sharded.root), 0);
      }
      expect_same_weights(*sharded.module, *plain);
    });
  }
}

}  // namespace
}  // namespace fsdp::unit_steps_test
