// One copy of gathered weights for all ranks of a host: nobody overwrites what another rank still reads, nobody reads
// what its owner has not published. Ranks pause at random places, so that each of them is now first, now last; every
// read is made twice with a pause between; and the outcome has the bits of ranks with a copy each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "fsdp/fsdp.h"
#include "tests/io/temporary_folder.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::shared_weights_test {
namespace {

namespace nn = torch::nn;
using testing::kModelSeed;
using testing::make_seeded;

constexpr int64_t kWidth = 24;
constexpr int kSteps = 4;

// Of this rank's thread; which rank is late is another question at every call.
void pause() {
  static std::atomic<uint32_t> next_seed{20261};
  thread_local std::minstd_rand random(next_seed++);
  if (random() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
}

struct BlockImpl : nn::Module {
  BlockImpl() { weight = register_parameter("weight", torch::randn({kWidth, kWidth}) * 0.3); }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor before = weight.detach().clone();
    pause();
    const torch::Tensor y = x + torch::tanh(torch::matmul(x, weight));
    pause();
    EXPECT_TRUE(torch::equal(weight.detach(), before)) << "written while it was read";
    return y;
  }
  torch::Tensor weight;
};

struct Model : nn::Module {
  Model() {
    for (int i = 0; i < 3; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<BlockImpl>()));
    scale = register_parameter("scale", torch::ones({kWidth}));
  }
  torch::Tensor loss(torch::Tensor x) {
    x = x.to(scale.scalar_type());
    for (const auto& block : blocks) x = block->forward(x);
    return (x * scale).square().mean();
  }
  std::vector<std::shared_ptr<BlockImpl>> blocks;
  torch::Tensor scale;
};

// How many hosts the ranks are made to believe in; several: weights are sharded within each and replicated over them.
struct Place {
  int hosts = 1;
  int ranks_per_host = 2;
};

// What happens to a model on one rank.
struct Life {
  Life(const World& joined, const Place& place, const ShardOptions& options)
      : world(joined), model(make_seeded(kModelSeed, [] { return std::make_shared<Model>(); })) {
    const Mesh mesh = place.hosts == 1 ? Mesh::shard(world)
                                       : Mesh(world, {{"replicate", place.hosts}, {"shard", place.ranks_per_host}});
    for (const auto& block : model->blocks) fully_shard(*block, mesh, options);
    root = std::make_shared<Unit>(fully_shard(*model, mesh, options));
  }
  torch::Tensor input(int step) const {
    return torch::randn({2, kWidth}, testing::generator(static_cast<uint64_t>(100 * step + world.rank)));
  }
  void train(int step) { model->loss(input(step)).backward(); }
  void evaluate(int step) {
    const torch::NoGradGuard no_grad;
    losses.push_back(model->loss(input(step)));
  }

  World world;
  std::shared_ptr<Model> model;
  std::shared_ptr<Unit> root;
  std::vector<torch::Tensor> losses;
};

using Story = std::function<void(Life&)>;

// Everything that this rank can see at the end.
std::vector<torch::Tensor> tell(const World& world, const Place& place, const Story& story,
                                const ShardOptions& options) {
  Life life(world, place, options);
  story(life);
  for (const torch::Tensor& leaf : parameters(*life.model)) life.losses.push_back(leaf.detach().clone());
  life.evaluate(999);
  return life.losses;
}

void expect_equal_lives(const Story& story, const ShardOptions& options = {},
                        const std::vector<Place>& places = {{1, 2}, {1, 3}}) {
  for (const Place& place : places) {
    const int ranks = place.hosts * place.ranks_per_host;
    std::vector<std::vector<torch::Tensor>> outcome[2];
    for (const auto copies : {HostWeightCopies::kOne, HostWeightCopies::kPerRank}) {
      auto& here = outcome[copies == HostWeightCopies::kOne ? 0 : 1];
      here.resize(static_cast<size_t>(ranks));
      const auto options_of = [&](int rank) {
        comm::ConnectOptions connect;
        connect.deadline = testing::kTestDeadline;
        connect.transport = TransportKind::kAuto;
        connect.host_weights = copies;
        connect.host_label = std::to_string(rank / place.ranks_per_host);
        return connect;
      };
      testing::run_ranks_with(ranks, options_of, [&](const World& world) {
        here[static_cast<size_t>(world.rank)] = tell(world, place, story, options);
      });
    }
    for (size_t rank = 0; rank < outcome[0].size(); ++rank) {
      ASSERT_EQ(outcome[0][rank].size(), outcome[1][rank].size());
      for (size_t i = 0; i < outcome[0][rank].size(); ++i) {
        EXPECT_TRUE(torch::equal(outcome[0][rank][i], outcome[1][rank][i])) << "rank " << rank << ", value " << i;
      }
    }
  }
}

template <class MakeOptimizer>
Story training(MakeOptimizer make_optimizer) {
  return [=](Life& life) {
    auto optimizer = make_optimizer(parameters(*life.model));
    for (int step = 0; step < kSteps; ++step) {
      life.train(step);
      pause();
      optimizer.step();
      zero_grad(*life.model);
    }
  };
}

AdamW make_adamw(std::vector<torch::Tensor> leaves) { return {std::move(leaves), AdamWOptions{.lr = 0.05}}; }

TEST(SharedWeights, AreTrainedByOurOptimizers) {
  expect_equal_lives(training(make_adamw));
  expect_equal_lives(training([](std::vector<torch::Tensor> leaves) {
    return SGD(std::move(leaves), SGDOptions{.lr = 0.05, .momentum = 0.9});
  }));
}

TEST(SharedWeights, AreTrainedByLibTorchsOptimizers) {
  expect_equal_lives(training([](std::vector<torch::Tensor> leaves) { return torch::optim::AdamW(leaves, 0.05); }));
  expect_equal_lives(training([](std::vector<torch::Tensor> leaves) { return torch::optim::SGD(leaves, 0.05); }));
}

TEST(SharedWeights, AreTrainedInBf16) {
  ShardOptions options;
  options.precision = Precision::bf16();
  expect_equal_lives(training(make_adamw), options);
}

TEST(SharedWeights, AreTrainedUnderEveryStrategy) {
  for (const Strategy strategy : {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads}) {
    ShardOptions options;
    options.strategy = strategy;
    expect_equal_lives(training(make_adamw), options);
  }
}

TEST(SharedWeights, AreSharedWithinEachOfSeveralHosts) {
  ShardOptions options;
  options.strategy = Strategy::kHybrid;
  expect_equal_lives(training(make_adamw), options, {{2, 2}, {3, 2}});
}

TEST(SharedWeights, AreUpdatedInTheBackward) {
  expect_equal_lives([](Life& life) {
    AdamW optimizer = make_adamw(parameters(*life.model));
    optimizer.step_in_backward();
    for (int step = 0; step < kSteps; ++step) life.train(step);
  });
}

TEST(SharedWeights, StayThroughEvaluationAndMicrobatches) {
  expect_equal_lives([](Life& life) {
    AdamW optimizer = make_adamw(parameters(*life.model));
    for (int step = 0; step < kSteps; ++step) {
      life.evaluate(10 + step);
      {
        const NoSync no_sync(*life.root);
        life.train(20 + step);
        life.evaluate(30 + step);
      }
      life.train(40 + step);
      life.evaluate(60 + step);
      optimizer.step();
      zero_grad(*life.model);
      if (step % 2 == 0) life.evaluate(50 + step);
    }
  });
}

TEST(SharedWeights, SeeWhatTheProgramWrites) {
  expect_equal_lives([](Life& life) {
    AdamW optimizer = make_adamw(parameters(*life.model));
    for (int step = 0; step < kSteps; ++step) {
      life.train(step);
      {
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& leaf : parameters(*life.model)) leaf.clamp_(-0.2, 0.2);
      }
      if (step % 2 == 0) life.evaluate(step);
      optimizer.step();
      zero_grad(*life.model);
    }
  });
}

TEST(SharedWeights, AreWrittenBack) {
  expect_equal_lives([](Life& life) {
    AdamW optimizer = make_adamw(parameters(*life.model));
    for (int step = 0; step < kSteps; ++step) {
      life.train(step);
      optimizer.step();
      zero_grad(*life.model);
      {
        const FullParameters full = full_parameters(*life.root, WriteBack::kYes);
        const torch::NoGradGuard no_grad;
        pause();
        for (const auto& block : life.model->blocks) block->weight.mul_(0.9);
        pause();
      }
      life.evaluate(step);
    }
  });
}

TEST(SharedWeights, AreLoaded) {
  const io::TemporaryFolder folder;
  expect_equal_lives([&](Life& life) {
    const std::string path = folder / ("world" + std::to_string(life.world.size) + ".pt");
    save(*life.model, path);
    AdamW optimizer = make_adamw(parameters(*life.model));
    for (int step = 0; step < kSteps; ++step) {
      life.train(step);
      optimizer.step();
      zero_grad(*life.model);
      life.evaluate(10 + step);
      if (step == 1) load(*life.model, path);
      life.evaluate(step);
    }
  });
}

// The optimizer's weights and those that all read are the same memory, until the model goes.
TEST(SharedWeights, OutliveTheModelInItsOptimizer) {
  const auto options_of = [](int) {
    comm::ConnectOptions connect;
    connect.transport = TransportKind::kShm;
    return connect;
  };
  testing::run_ranks_with(2, options_of, [](const World& world) {
    std::optional<Life> life(std::in_place, world, Place{}, ShardOptions{});
    AdamW optimizer = make_adamw(parameters(*life->model));
    EXPECT_EQ(life->root->resting_bytes().model_weight, 0);
    life->train(0);
    optimizer.step();
    const std::vector<torch::Tensor> leaves = parameters(*life->model);
    const torch::Tensor kept = leaves[0].detach().clone();
    life.reset();
    EXPECT_TRUE(torch::equal(leaves[0].detach(), kept));
  });
}

}  // namespace
}  // namespace fsdp::shared_weights_test
