// ShardOptions::writes: models whose forward writes into their own parameters train like their unsharded twins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/worlds.h"

namespace fsdp::weight_writes_test {
namespace {

using ::testing::AllOf;
using testing::batch;
using testing::error_of;
using testing::expect_same_weights;
using testing::for_strategies;
using testing::for_worlds;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::share_of;

constexpr int64_t kFeatures = testing::BlockModel::kFeatures, kWidth = 6;
constexpr uint64_t kSeed = 88;

// What the forward writes.
enum class Habit {
  kInitialises,     // the shift of a normalisation, once, from the first rows it sees (activation norm)
  kFollows,         // a codebook that no optimizer trains, by a moving average after each use
  kNorms,           // the rows of a weight, before each use
  kInitialisesAll,  // also the scale, which is no linear function of the rows
};

struct WritingNorm : torch::nn::Module {
  explicit WritingNorm(Habit does) : habit(does) {
    shift = register_parameter("shift", torch::zeros({kWidth}));
    scale = register_parameter("scale", torch::ones({kWidth}));
    codebook = register_parameter("codebook", torch::zeros({kWidth}), /*requires_grad=*/false);
  }

  torch::Tensor forward(torch::Tensor x) {
    const bool initialises = habit == Habit::kInitialises || habit == Habit::kInitialisesAll;
    if (initialises && !is_initialised) {
      const torch::NoGradGuard no_grad;
      shift.copy_(-x.mean(0));
      if (habit == Habit::kInitialisesAll) scale.copy_(1 / (x.std(0, /*unbiased=*/false) + 0.1));
      is_initialised = true;
    }
    const torch::Tensor y = (x + shift) * scale - codebook;
    if (habit == Habit::kFollows && is_training()) {
      const torch::NoGradGuard no_grad;
      codebook.mul_(0.75).add_(0.25 * x.mean(0));
    }
    return y;
  }

  Habit habit;
  bool is_initialised = false;
  torch::Tensor shift, scale, codebook;
};

struct Writer : torch::nn::Module {
  explicit Writer(Habit does) : habit(does) {
    inlet = register_module("inlet", torch::nn::Linear(kFeatures, kWidth));
    norm = register_module("norm", std::make_shared<WritingNorm>(does));
    outlet = register_module("outlet", torch::nn::Linear(kWidth, 3));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    if (habit == Habit::kNorms) {
      const torch::NoGradGuard no_grad;
      inlet->weight.div_(inlet->weight.norm(2, 1, /*keepdim=*/true));
    }
    return outlet(torch::tanh(norm->forward(inlet(x))));
  }
  torch::Tensor loss(const torch::Tensor& x) { return forward(x).square().mean(); }

  Habit habit;
  torch::nn::Linear inlet{nullptr}, outlet{nullptr};
  std::shared_ptr<WritingNorm> norm;
};

std::shared_ptr<Writer> make_writer(Habit habit) {
  return testing::make_seeded(kSeed, [&] { return std::make_shared<Writer>(habit); });
}

Unit shard_writer(Writer& module, const Mesh& mesh, const ShardOptions& options) {
  fully_shard(*module.norm, mesh, options);
  return fully_shard(module, mesh, options);
}

ShardOptions with(const ShardOptions& given, WeightWrites writes) {
  ShardOptions options = given;
  options.writes = writes;
  return options;
}

std::vector<torch::Tensor> trainable(const std::vector<torch::Tensor>& all) {
  std::vector<torch::Tensor> list;
  std::copy_if(all.begin(), all.end(), std::back_inserter(list), [](const auto& each) { return each.requires_grad(); });
  return list;
}

void train_both(const World& world, Writer& sharded, Writer& twin, double tolerance = 1e-5) {
  SGD optimizer(trainable(parameters(sharded)), {.lr = 0.2});
  torch::optim::SGD twins(trainable(twin.parameters()), 0.2);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const torch::Tensor loss = sharded.loss(share_of(world, batch(seed)));
    const torch::Tensor expected = twin.loss(batch(seed));
    loss.backward();
    expected.backward();
    EXPECT_NEAR(sum_over_ranks(world, loss.detach()).item<double>() / world.size, expected.item<double>(), tolerance);
    optimizer.step();
    twins.step();
    zero_grad(sharded);
    twin.zero_grad();
  }
  expect_same_weights(sharded, twin, tolerance);
}

TEST(WeightWrites, TheMeanOfTheRanksIsWhatTheTwinMakesOfAllRows) {
  for (const Habit habit : {Habit::kInitialises, Habit::kFollows, Habit::kNorms}) {
    SCOPED_TRACE(static_cast<int>(habit));
    for_strategies([&](const World& world, const ShardOptions& options) {
      const auto sharded = make_writer(habit), twin = make_writer(habit);
      const Unit root = shard_writer(*sharded, Mesh::shard(world), with(options, WeightWrites::kMean));
      train_both(world, *sharded, *twin);
    });
  }
}

TEST(WeightWrites, RankZerosValuesAreEverybodys) {
  for_strategies([](const World& world, const ShardOptions& options) {
    const auto sharded = make_writer(Habit::kInitialisesAll), twin = make_writer(Habit::kInitialisesAll);
    const Unit root = shard_writer(*sharded, Mesh::shard(world), with(options, WeightWrites::kRankZero));
    const torch::Tensor rows = batch(1);
    {
      const torch::NoGradGuard no_grad;
      twin->forward(rows.narrow(0, 0, rows.size(0) / world.size));  // what rank 0 sees first
    }
    train_both(world, *sharded, *twin);
  });
}

TEST(WeightWrites, ReplicasAgreeToo) {
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim}) {
    SCOPED_TRACE(name(strategy));
    run_ranks(4, [&](const World& world) {
      ShardOptions options;
      options.strategy = strategy;
      const Mesh mesh(world, {{"replicate", 2}, {"shard", 2}});
      const auto followed = make_writer(Habit::kFollows), follower = make_writer(Habit::kFollows);
      const Unit first = shard_writer(*followed, mesh, with(options, WeightWrites::kMean));
      train_both(world, *followed, *follower);
      const auto sharded = make_writer(Habit::kInitialisesAll), twin = make_writer(Habit::kInitialisesAll);
      const Unit second = shard_writer(*sharded, mesh, with(options, WeightWrites::kRankZero));
      const torch::NoGradGuard no_grad;
      twin->forward(batch(1).narrow(0, 0, 3));
      const at::AutoGradMode with_gradients(true);
      train_both(world, *sharded, *twin);
    });
  }
}

// Each forward of a sum of microbatches sees what the one before wrote.
TEST(WeightWrites, HoldOverMicrobatchesAndEvaluation) {
  for_strategies([](const World& world, const ShardOptions& options) {
    const auto sharded = make_writer(Habit::kFollows), twin = make_writer(Habit::kFollows);
    const Unit root = shard_writer(*sharded, Mesh::shard(world), with(options, WeightWrites::kMean));
    SGD optimizer(trainable(parameters(*sharded)), {.lr = 0.2});
    torch::optim::SGD twins(trainable(twin->parameters()), 0.2);
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      const bool is_last = seed % 2 == 0;
      const Microbatch scope(root, is_last);
      sharded->loss(share_of(world, batch(seed))).backward();
      twin->loss(batch(seed)).backward();
      if (!is_last) continue;
      optimizer.step();
      twins.step();
      zero_grad(*sharded);
      twin->zero_grad();
    }
    {
      const ForwardOnly scope(root);
      const torch::Tensor mine = share_of(world, batch(9));
      // The codebook moves in the first, which the second shows.
      for (int pass = 0; pass < 2; ++pass) {
        const torch::Tensor whole = twin->forward(batch(9));
        EXPECT_TRUE(torch::allclose(sharded->forward(mine), share_of(world, whole), 1e-4, 1e-5)) << pass;
      }
    }
    expect_same_weights(*sharded, *twin);
  });
}

TEST(WeightWrites, ReachMainWeightsOfAnotherDtype) {
  for_worlds([](const World& world) {
    const auto module = make_writer(Habit::kNorms);
    ShardOptions options;
    options.writes = WeightWrites::kRankZero;
    options.precision = Precision::bf16();
    const Unit root = shard_writer(*module, Mesh::shard(world), options);
    module->loss(share_of(world, batch(1)).to(torch::kBFloat16)).backward();
    const torch::Tensor norms = full_state_dict(*module).tensors.at("inlet.weight").norm(2, 1);
    EXPECT_TRUE(torch::allclose(norms, torch::ones({kWidth}), 0.02, 0.02)) << norms;
  });
}

// Under no_shard too, where the weight that is written is the main weight, and other ranks would not hear of it.
TEST(WeightWrites, AreRefusedByNameWhereNothingIsSaid) {
  for_strategies([](const World& world, const ShardOptions& options) {
    const auto sharded = make_writer(Habit::kInitialises), twin = make_writer(Habit::kInitialises);
    const Unit root = shard_writer(*sharded, Mesh::shard(world), options);
    if (world.size == 1) return train_both(world, *sharded, *twin);
    EXPECT_THAT(error_of([&] { sharded->loss(share_of(world, batch(1))).backward(); }),
                AllOf(HasSubstr("copy_"), HasSubstr("'norm.shift'"), HasSubstr("ShardOptions::writes")));
  });
}

TEST(WeightWrites, SetDataIsRefusedByNameAlways) {
  for_strategies([](const World& world, const ShardOptions& options) {
    const auto module = make_writer(Habit::kInitialises);
    const Unit root = shard_writer(*module, Mesh::shard(world), with(options, WeightWrites::kMean));
    module->norm->shift.set_data(torch::ones({kWidth}));
    module->norm->is_initialised = true;
    EXPECT_THAT(error_of([&] { module->loss(share_of(world, batch(1))).backward(); }),
                AllOf(HasSubstr("'norm.shift'"), HasSubstr("set_data()")));
  });
}

TEST(WeightWrites, RanksThatChooseOthersAreRefused) {
  run_ranks(2, [](const World& world) {
    const auto module = make_writer(Habit::kNorms);
    ShardOptions options;
    options.writes = world.rank == 0 ? WeightWrites::kMean : WeightWrites::kRefused;
    EXPECT_THAT(error_of([&] { shard_writer(*module, Mesh::shard(world), options); }), HasSubstr("or options"));
  });
}

}  // namespace
}  // namespace fsdp::weight_writes_test
