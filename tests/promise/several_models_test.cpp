// Several sharded models in one program, and one model in several graphs at once.
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::several_models_test {
namespace {

using testing::batch;
using testing::BlockModel;
using testing::expect_same_gradients;
using testing::expect_same_weights;
using testing::loss_of;
using testing::make_block_model;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

constexpr double kLearningRate = 0.05;

void clear(BlockModel& sharded, BlockModel& plain) {
  zero_grad(sharded);
  plain.zero_grad();
}

TEST(SeveralModels, TwoForwardsThenTwoBackwards) {
  for (const Strategy strategy : {Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    run_ranks(2, [&](const World& world) {
      SCOPED_TRACE(name(strategy));
      ShardOptions options;
      options.strategy = strategy;
      const ShardedBlocks sharded = shard_blocks(world, options);
      const auto plain = make_block_model();
      parameters(*sharded.module);
      for (int step = 0; step < 3; ++step) {
        const torch::Tensor first = loss_of(*sharded.module, share_of(world, batch(1)));
        const torch::Tensor second = loss_of(*sharded.module, share_of(world, batch(2)));
        second.backward();
        first.backward();
        loss_of(*plain, batch(2)).backward();
        loss_of(*plain, batch(1)).backward();
        expect_same_gradients(*sharded.module, *plain);
        EXPECT_EQ(sharded.root.counters().resident_unsharded_bytes, 0);
        clear(*sharded.module, *plain);
      }
    });
  }
}

torch::nn::Sequential make_pair_of_layers() {
  return testing::make_seeded(7,
                              [] { return torch::nn::Sequential(torch::nn::Linear(5, 4), torch::nn::Linear(4, 3)); });
}

TEST(SeveralModels, ARootWithoutParametersOfItsOwn) {
  run_ranks(2, [](const World& world) {
    auto sharded = make_pair_of_layers();
    auto plain = make_pair_of_layers();
    ShardOptions options;
    options.strategy = Strategy::kOptim;  // reduces in the last microbatch only, which the root has to tell its units
    for (auto& layer : *sharded) fully_shard(*layer.ptr(), Mesh::shard(world), options);
    {
      const Unit root = fully_shard(*sharded, Mesh::shard(world), options);
      EXPECT_EQ(root.num_units(), 3);
      parameters(*sharded);
      for (const bool is_last : {false, true}) {
        const Microbatch scope(root, is_last);
        sharded->forward(share_of(world, batch(is_last ? 2 : 1))).square().mean().backward();
        EXPECT_EQ(root.counters().reduces, is_last ? 2 : 0);
        plain->forward(batch(is_last ? 2 : 1)).square().mean().backward();
      }
      expect_same_gradients(*sharded, *plain);
    }
    zero_grad(*sharded);
    plain->zero_grad();
    sharded->forward(share_of(world, batch(3))).square().mean().backward();
    plain->forward(batch(3)).square().mean().backward();
    expect_same_gradients(*sharded, *plain);
  });
}

// Outputs of a frozen teacher are the student's targets.
torch::Tensor distillation_loss(BlockModel& student, BlockModel& teacher, const torch::Tensor& rows) {
  return (student.forward(rows) - teacher.forward(rows).detach()).square().mean();
}

TEST(SeveralModels, AFrozenTeacherAndAStudent) {
  run_ranks(3, [](const World& world) {
    const auto plain_teacher = make_block_model(2);
    const auto plain_student = make_block_model(3);
    const auto teacher = make_block_model(2);
    for (torch::Tensor& parameter : teacher->parameters()) parameter.requires_grad_(false);
    for (size_t i = 0; i < 2; ++i) fully_shard(teacher->block(i), Mesh::shard(world));
    const Unit teacher_root = fully_shard(*teacher, Mesh::shard(world));
    const ShardedBlocks student = shard_blocks(world);
    AdamW optimizer(parameters(*student.module), {.lr = kLearningRate});
    torch::optim::AdamW plain_optimizer(plain_student->parameters(), kLearningRate);
    for (uint64_t step = 0; step < 4; ++step) {
      distillation_loss(*student.module, *teacher, share_of(world, batch(step))).backward();
      distillation_loss(*plain_student, *plain_teacher, batch(step)).backward();
      expect_same_gradients(*student.module, *plain_student);
      optimizer.step();
      plain_optimizer.step();
      clear(*student.module, *plain_student);
      EXPECT_EQ(teacher_root.counters().resident_unsharded_bytes, 0);
    }
    expect_same_weights(*student.module, *plain_student);
    expect_same_weights(*teacher, *plain_teacher, 0);
  });
}

// As in adversarial training: each model's backward goes through the other, only one of them is stepped.
TEST(SeveralModels, TwoTrainedInTurns) {
  run_ranks(2, [](const World& world) {
    const ShardedBlocks a = shard_blocks(world);
    const ShardedBlocks b = shard_blocks(world);
    const auto plain_a = make_block_model();
    const auto plain_b = make_block_model();
    AdamW optimizer_a(parameters(*a.module), {.lr = kLearningRate});
    AdamW optimizer_b(parameters(*b.module), {.lr = kLearningRate});
    torch::optim::AdamW plain_optimizer_a(plain_a->parameters(), kLearningRate);
    torch::optim::AdamW plain_optimizer_b(plain_b->parameters(), kLearningRate);
    const auto loss = [](BlockModel& x, BlockModel& y, const torch::Tensor& rows) {
      return (x.forward(rows) * y.forward(rows * 2)).square().mean();
    };
    for (uint64_t step = 0; step < 4; ++step) {
      loss(*a.module, *b.module, share_of(world, batch(step))).backward();
      loss(*plain_a, *plain_b, batch(step)).backward();
      expect_same_gradients(*a.module, *plain_a, 1e-4);
      expect_same_gradients(*b.module, *plain_b, 1e-4);
      step % 2 == 0 ? optimizer_a.step() : optimizer_b.step();
      step % 2 == 0 ? plain_optimizer_a.step() : plain_optimizer_b.step();
      clear(*a.module, *plain_a);
      clear(*b.module, *plain_b);
    }
    expect_same_weights(*a.module, *plain_a, 1e-4);
    expect_same_weights(*b.module, *plain_b, 1e-4);
  });
}

TEST(SeveralModels, OneMayGoWhileAnotherTrains) {
  run_ranks(2, [](const World& world) {
    const ShardedBlocks kept = shard_blocks(world);
    const auto plain = make_block_model();
    parameters(*kept.module);
    for (int round = 0; round < 3; ++round) {
      ShardedBlocks passing = shard_blocks(world);
      loss_of(*passing.module, share_of(world, batch(1))).backward();
      const torch::Tensor unfinished =
          loss_of(*passing.module, share_of(world, batch(2)));  // goes unsharded, with its graph
    }
    loss_of(*kept.module, share_of(world, batch(3))).backward();
    loss_of(*plain, batch(3)).backward();
    expect_same_gradients(*kept.module, *plain);
    EXPECT_EQ(kept.root.counters().resident_unsharded_bytes, 0);
  });
}

TEST(SeveralModels, LeavesOutliveTheirModel) {
  run_ranks(2, [](const World& world) {
    std::vector<torch::Tensor> leaves;
    std::optional<AdamW> optimizer;
    {
      const ShardedBlocks sharded = shard_blocks(world);
      leaves = parameters(*sharded.module);
      optimizer.emplace(leaves, AdamWOptions{});
      loss_of(*sharded.module, share_of(world, batch(1))).backward();
      optimizer->step();
    }
    optimizer->step();
    EXPECT_TRUE(leaves[0].isfinite().all().item<bool>());
    EXPECT_EQ(logical_sizes(leaves[0]), (std::vector<int64_t>{6, 5}));  // kept alive by the optimizer
    optimizer.reset();
    EXPECT_EQ(local_range(leaves[0]).end, leaves[0].numel());  // now a tensor like any other
  });
}

TEST(SeveralModels, EvaluationBeforeTheFirstStep) {
  run_ranks(2, [](const World& world) {
    const ShardedBlocks sharded = shard_blocks(world);
    const auto plain = make_block_model();
    parameters(*sharded.module);
    {
      const c10::InferenceMode inference;
      const torch::Tensor rows = share_of(world, batch(5));
      EXPECT_TRUE(torch::allclose(sharded.module->forward(rows), plain->forward(rows), 1e-5, 1e-6));
    }
    loss_of(*sharded.module, share_of(world, batch(1))).backward();
    loss_of(*plain, batch(1)).backward();
    expect_same_gradients(*sharded.module, *plain);
  });
}

}  // namespace
}  // namespace fsdp::several_models_test
