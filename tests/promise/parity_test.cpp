// Sharded training is unsharded training: same losses, same weights, for every strategy, world size and model shape.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "fsdp/fsdp.h"
#include "tests/promise/models/parity_models.h"
#include "tests/support/ranks.h"
#include "tests/support/worlds.h"

namespace fsdp::parity_test {
namespace {

using testing::kFlatStrategies;
using testing::make_seeded;
using testing::ParityModel;
using testing::run_ranks;

constexpr int kSteps = 4;
constexpr int64_t kRowsPerMicrobatch = 12;  // divisible by every world size here
constexpr uint64_t kSeed = 20261;

enum class Optimizer { kFusedAdamW, kTorchAdamW, kFusedSGD, kTorchSGD };

struct Curve {
  std::vector<double> losses;
  std::map<std::string, torch::Tensor> weights;  // sharded: this rank's slices
  std::map<std::string, LocalRange> ranges;
  Counters counters;  // of the last step
  int64_t num_units = 0;
};

torch::Tensor input_of(int step, int microbatch, int64_t features) {
  auto generator = testing::generator(kSeed + 100U * static_cast<unsigned>(step) + static_cast<unsigned>(microbatch));
  return torch::randn({kRowsPerMicrobatch, features}, generator);
}

std::function<void()> make_stepper(Optimizer kind, std::vector<torch::Tensor> parameters) {
  std::erase_if(parameters, [](const torch::Tensor& parameter) { return !parameter.requires_grad(); });
  switch (kind) {
    case Optimizer::kFusedAdamW: {
      auto optimizer = std::make_shared<AdamW>(parameters, AdamWOptions{.lr = 0.02, .weight_decay = 0.1});
      return [optimizer] { optimizer->step(); };
    }
    case Optimizer::kFusedSGD: {
      auto optimizer = std::make_shared<SGD>(parameters, SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01});
      return [optimizer] { optimizer->step(); };
    }
    case Optimizer::kTorchAdamW: {
      auto options = torch::optim::AdamWOptions(0.02).weight_decay(0.1);
      auto optimizer = std::make_shared<torch::optim::AdamW>(parameters, options);
      return [optimizer] { optimizer->step(); };
    }
    case Optimizer::kTorchSGD: {
      auto options = torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01);
      auto optimizer = std::make_shared<torch::optim::SGD>(parameters, options);
      return [optimizer] { optimizer->step(); };
    }
  }
  throw std::logic_error("optimizer");
}

Optimizer torch_twin(Optimizer kind) {
  if (kind == Optimizer::kFusedAdamW) return Optimizer::kTorchAdamW;
  if (kind == Optimizer::kFusedSGD) return Optimizer::kTorchSGD;
  return kind;
}

Curve train_unsharded(const testing::ParityCase& test_case, int num_microbatches, Optimizer kind, double max_norm) {
  ParityModel model = make_seeded(kSeed, test_case.make);
  const auto step_optimizer = make_stepper(torch_twin(kind), model.module->parameters());
  Curve curve;
  for (int step = 0; step < kSteps; ++step) {
    double total = 0;
    for (int microbatch = 0; microbatch < num_microbatches; ++microbatch) {
      const torch::Tensor loss = model.loss(input_of(step, microbatch, test_case.features)) / num_microbatches;
      loss.backward();
      total += loss.item<double>();
    }
    curve.losses.push_back(total);
    torch::nn::utils::clip_grad_norm_(model.module->parameters(), max_norm);
    step_optimizer();
    model.module->zero_grad();
  }
  for (const auto& item : model.module->named_parameters()) curve.weights[item.key()] = item.value().detach().clone();
  return curve;
}

struct ShardedRun {
  Strategy strategy = Strategy::kOptimGradsParams;
  int world = 1;
  int num_microbatches = 1;
  Optimizer optimizer = Optimizer::kFusedAdamW;
  double max_norm = 0.5;
  bool microbatch_scope = true;
};

Unit shard(ParityModel& model, const Mesh& mesh, const ShardOptions& options) {
  for (const auto& unit : model.units) fully_shard(*unit, mesh, options);
  return fully_shard(*model.module, mesh, options);
}

// Loss of one global microbatch: every rank computes its rows; the mean over ranks is the mean over rows.
double train_microbatch(ParityModel& model, const World& world, const torch::Tensor& rows, int num_microbatches) {
  const int64_t share = kRowsPerMicrobatch / world.size;
  const torch::Tensor loss = model.loss(rows.narrow(0, world.rank * share, share)) / num_microbatches;
  loss.backward();
  return sum_over_ranks(world, loss.detach()).item<double>() / world.size;
}

Curve train_sharded(const World& world, const testing::ParityCase& test_case, const ShardedRun& run) {
  ParityModel model = make_seeded(kSeed, test_case.make);
  ShardOptions options;
  options.strategy = run.strategy;
  Unit root = shard(model, Mesh::shard(world), options);
  const auto step_optimizer = make_stepper(run.optimizer, parameters(*model.module));
  Curve curve;
  for (int step = 0; step < kSteps; ++step) {
    root.reset_counters();
    double total = 0;
    for (int microbatch = 0; microbatch < run.num_microbatches; ++microbatch) {
      std::optional<Microbatch> scope;
      if (run.microbatch_scope) scope.emplace(root, microbatch + 1 == run.num_microbatches);
      total += train_microbatch(model, world, input_of(step, microbatch, test_case.features), run.num_microbatches);
    }
    curve.losses.push_back(total);
    clip_grad_norm_(*model.module, run.max_norm);
    step_optimizer();
    zero_grad(*model.module);
    curve.counters = root.counters();
  }
  curve.num_units = root.num_units();
  for (const auto& [name, leaf] : named_parameters(*model.module)) {
    curve.weights[name] = leaf.detach().clone();
    curve.ranges[name] = local_range(leaf);
  }
  return curve;
}

void expect_close(const Curve& sharded, const Curve& reference, const std::string& what) {
  for (size_t step = 0; step < reference.losses.size(); ++step) {
    EXPECT_NEAR(sharded.losses[step], reference.losses[step], 2e-6 * (1 + std::abs(reference.losses[step])))
        << what << ", step " << step;
  }
  ASSERT_EQ(sharded.weights.size(), reference.weights.size()) << what;
  for (const auto& [name, slice] : sharded.weights) {
    const LocalRange range = sharded.ranges.at(name);
    const torch::Tensor expected = reference.weights.at(name).flatten().slice(0, range.begin, range.end);
    ASSERT_EQ(slice.numel(), expected.numel()) << what << ", " << name;
    if (slice.numel() == 0) continue;
    EXPECT_LT((slice - expected).abs().max().item<double>(), 2e-5) << what << ", " << name;
  }
}

void expect_parity(const testing::ParityCase& test_case, const ShardedRun& run) {
  const Curve reference = train_unsharded(test_case, run.num_microbatches, run.optimizer, run.max_norm);
  const std::string what = test_case.name + ", " + std::string(name(run.strategy)) + ", world " +
                           std::to_string(run.world) + ", microbatches " + std::to_string(run.num_microbatches);
  run_ranks(run.world,
            [&](const World& world) { expect_close(train_sharded(world, test_case, run), reference, what); });
}

class Parity : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(Parity, EveryStrategyTrainsLikeTheUnshardedModel) {
  const auto& [model, world] = GetParam();
  for (const Strategy strategy : kFlatStrategies) {
    for (const int num_microbatches : {1, 3}) {
      expect_parity(testing::parity_case(model), {strategy, world, num_microbatches});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Parity,
                         ::testing::Combine(::testing::Values("sequential", "tied", "frozen", "tiny", "crossing"),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_world" + std::to_string(std::get<1>(info.param));
                         });

TEST(ParityOptimizer, AnyOptimizerWorksOnTheLeaves) {
  for (const Optimizer optimizer :
       {Optimizer::kFusedAdamW, Optimizer::kTorchAdamW, Optimizer::kFusedSGD, Optimizer::kTorchSGD}) {
    for (const Strategy strategy : kFlatStrategies) {
      expect_parity(testing::parity_case("tied"), {strategy, 2, 1, optimizer});
    }
  }
}

TEST(ParityAccumulation, PlainRepeatedBackwardsAddUp) {
  for (const Strategy strategy : kFlatStrategies) {
    ShardedRun run{strategy, 2, 3};
    run.microbatch_scope = false;
    expect_parity(testing::parity_case("tied"), run);
  }
}

// One microbatch: with more, ZeRO-0 and ZeRO-1 add them up before the ranks, the others after.
TEST(ParityBits, StrategiesAgreeToTheLastBit) {
  std::vector<Curve> curves(std::size(kFlatStrategies));
  for (size_t i = 0; i < curves.size(); ++i) {
    run_ranks(3, [&](const World& world) {
      ShardedRun run{kFlatStrategies[i], 3};
      run.max_norm = 1e9;  // the norm's sum is split by shard, so the clip factor may differ in its last bit
      Curve curve = train_sharded(world, testing::parity_case("tied"), run);
      if (world.rank == 0) curves[i] = std::move(curve);
    });
    EXPECT_EQ(curves[i].losses, curves[0].losses) << name(kFlatStrategies[i]);
  }
}

// DESIGN 5.8: M(2U - k) gathers and MU reduces; here k = 2, the root and the last block.
TEST(ParityCounts, GathersReducesAndPeakFollowTheFormulas) {
  for (const int num_microbatches : {1, 3}) {
    run_ranks(2, [&](const World& world) {
      const Curve curve =
          train_sharded(world, testing::parity_case("tied"), {Strategy::kOptimGradsParams, 2, num_microbatches});
      const int64_t units = curve.num_units;
      EXPECT_EQ(units, 4);
      EXPECT_EQ(curve.counters.gathers, num_microbatches * (2 * units - 2));
      EXPECT_EQ(curve.counters.reduces, num_microbatches * units);
      const int64_t block_bytes = (6 + 6 + 6 * 18 + 18 + 18 * 6 + 32) * 4;  // with room for alignment
      const int64_t root_bytes = (54 + 6 + 6 + 32) * 4;
      EXPECT_LE(curve.counters.peak_unsharded_bytes, root_bytes + 2 * block_bytes);
      EXPECT_EQ(curve.counters.resident_unsharded_bytes, 0);
    });
  }
}

}  // namespace
}  // namespace fsdp::parity_test
