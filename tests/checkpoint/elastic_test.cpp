// What any number of ranks saved, under any strategy and layout, any other number reads: the tensors put together are
// the same, bit for bit, and the training that goes on is that of one device that never stopped, but for roundings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fsdp/fsdp.h"
#include "tests/checkpoint/logical_tensors.h"
#include "tests/checkpoint/training_run.h"
#include "tests/io/temporary_folder.h"
#include "tests/support/ranks.h"

namespace fsdp::elastic_test {
namespace {

namespace fs = std::filesystem;
using io::TemporaryFolder;
using layout::Granularity;
using testing::expect_same_state;
using testing::LogicalTensors;
using testing::make_seeded;
using testing::OptimizerKind;
using testing::read_logical_tensors;
using testing::run_ranks;
using testing::TrainingPlan;
using testing::TrainingRun;
using testing::UnshardedRun;

constexpr uint64_t kSeed = 21;
constexpr int kStepsOfALeg = 2;
constexpr double kNoise = 1e-4;

struct Place {
  Strategy strategy;
  int replicas;
  int shards;
  LayoutOptions layout = {};
};
using Chain = std::vector<Place>;

// Worlds of 1, 2, 4, 3 and 1 ranks.
const std::vector<Chain>& chains() {
  static const std::vector<Chain> all = {{{Strategy::kNoShard, 1, 1},
                                          {Strategy::kOptimGradsParams, 1, 2, {Granularity::kRow}},
                                          {Strategy::kHybrid, 2, 2, {Granularity::kTensor}},
                                          {Strategy::kOptim, 1, 3, {Granularity::kBlock, 4}},
                                          {Strategy::kOptimGradsParams, 1, 1}},
                                         {{Strategy::kOptimGradsParams, 1, 1, {Granularity::kTensor}},
                                          {Strategy::kHybridOptim, 2, 1},
                                          {Strategy::kHybridOptim, 2, 2, {Granularity::kRow}},
                                          {Strategy::kOptimGrads, 1, 3},
                                          {Strategy::kNoShard, 1, 1}},
                                         {{Strategy::kOptim, 1, 1},
                                          {Strategy::kNoShard, 1, 2},
                                          {Strategy::kHybridZero2, 2, 2, {Granularity::kBlock, 7}},
                                          {Strategy::kOptimGradsParams, 1, 3},
                                          {Strategy::kHybrid, 1, 1}}};
  return all;
}

// Every parameter as the model computes with it, against what was read from the files.
void expect_gathered(TrainingRun& run, const LogicalTensors& saved) {
  const FullParameters full = full_parameters(run.root());
  const torch::NoGradGuard no_grad;
  for (const auto& item : run.model().named_parameters()) {
    const auto found = saved.find("model/" + item.key());
    if (found == saved.end()) {
      EXPECT_EQ(item.key(), "inlet.weight");  // has another name
      continue;
    }
    const torch::Tensor expected = found->second.to(item.value().scalar_type());
    EXPECT_EQ(item.value().sizes(), expected.sizes()) << item.key();
    EXPECT_TRUE(torch::equal(item.value(), expected)) << item.key();
  }
}

// One life of the model on a chain's place: loads, is compared, saves at once, trains, saves.
class Leg {
 public:
  Leg(const fs::path& folder, TrainingPlan plan, int number) : folder_(folder), plan_(plan), number_(number) {}

  fs::path end() const { return folder_ / ("step-" + std::to_string((number_ + 1) * kStepsOfALeg)); }

  void run(const std::vector<double>& expected) const {
    const LogicalTensors saved = number_ == 0 ? LogicalTensors() : read_logical_tensors(begin());
    run_ranks(plan_.world(), [&](const World& world) {
      SCOPED_TRACE(plan_.text());
      TrainingRun run(world, plan_, kSeed + static_cast<uint64_t>(number_));
      if (number_ > 0) load(world, run, saved);
      for (int i = 0; i < kStepsOfALeg; ++i) {
        const int step = number_ * kStepsOfALeg + i;
        const double loss = run.step(step);
        EXPECT_TRUE(std::isfinite(loss));
        if (expected.empty()) continue;
        EXPECT_NEAR(loss, expected[static_cast<size_t>(step)], kNoise * (1 + loss));
      }
      checkpoint::save(end(), run.state());
    });
  }

 private:
  fs::path begin() const { return folder_ / ("step-" + std::to_string(number_ * kStepsOfALeg)); }

  void load(const World& world, TrainingRun& run, const LogicalTensors& saved) const {
    const checkpoint::LoadReport report = checkpoint::load(begin(), run.state());
    EXPECT_EQ(report.step, number_ * kStepsOfALeg);
    expect_gathered(run, saved);
    const fs::path again = folder_ / "again" / begin().filename();
    checkpoint::save(again, run.state());
    if (world.rank == 0) {
      expect_same_state(read_logical_tensors(again), saved);
      EXPECT_EQ(io::read_manifest(again).values, io::read_manifest(begin()).values);
    }
    barrier(world, "compared");
  }

  fs::path folder_;
  TrainingPlan plan_;
  int number_;
};

// Returns what the last leg saved.
LogicalTensors follow(const Chain& chain, OptimizerKind kind, bool bf16, const std::vector<double>& expected) {
  const TemporaryFolder folder;
  LogicalTensors result;
  for (size_t i = 0; i < chain.size(); ++i) {
    const TrainingPlan plan{.strategy = chain[i].strategy,
                            .replicas = chain[i].replicas,
                            .shards = chain[i].shards,
                            .bf16 = bf16,
                            .optimizer = kind,
                            .layout = chain[i].layout,
                            .alike = true};
    const Leg leg(folder.path(), plan, static_cast<int>(i));
    leg.run(expected);
    if (i + 1 == chain.size()) result = read_logical_tensors(leg.end());
  }
  return result;
}

void expect_steps(const LogicalTensors& saved, const std::string& parameter, int64_t steps) {
  const auto found = saved.find("optimizer/step/" + parameter);
  ASSERT_NE(found, saved.end()) << parameter;
  EXPECT_EQ(found->second.item<int64_t>(), steps) << parameter;
}

class CheckpointElastic : public ::testing::TestWithParam<OptimizerKind> {};

TEST_P(CheckpointElastic, TrainsLikeOneDeviceThatNeverStopped) {
  for (const Chain& chain : chains()) {
    const auto num_steps = static_cast<int>(chain.size()) * kStepsOfALeg;
    UnshardedRun reference(GetParam(), kSeed);
    std::vector<double> losses;
    for (int step = 0; step < num_steps; ++step) losses.push_back(reference.step(step));
    const LogicalTensors saved = follow(chain, GetParam(), false, losses);
    for (const auto& item : reference.model().named_parameters()) {
      if (item.key() == "inlet.weight") continue;
      const torch::Tensor& weight = saved.at("model/" + item.key());
      EXPECT_TRUE(torch::allclose(weight, item.value().detach(), kNoise, kNoise)) << item.key();
    }
    if (GetParam() == OptimizerKind::kSGD || GetParam() == OptimizerKind::kTorchSGD) continue;
    expect_steps(saved, "outlet", num_steps);
    expect_steps(saved, "plain", num_steps);
    expect_steps(saved, "late.weight", num_steps - testing::kLateJoins);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, CheckpointElastic,
                         ::testing::Values(OptimizerKind::kAdamW, OptimizerKind::kSGD, OptimizerKind::kTorchAmsgrad),
                         [](const auto& info) { return testing::name(info.param); });

TEST(CheckpointElasticState, IsTheSameBitsInBf16AndForEveryOptimizer) {
  for (const OptimizerKind kind : testing::kOptimizerKinds) {
    SCOPED_TRACE(testing::name(kind));
    follow(chains().front(), kind, true, {});
  }
}

// Rank r of three gets what rank r % 2 of two had.
TEST(CheckpointElasticState, OfEachRankIsDealtOutToMoreRanks) {
  const TemporaryFolder folder;
  std::vector<torch::Tensor> means(2);
  std::vector<torch::Tensor> plains(2);
  std::vector<torch::Tensor> masks(2);
  run_ranks(2, [&](const World& world) {
    TrainingRun run(world, {Strategy::kOptimGradsParams, 1, 2}, kSeed);
    for (int step = 0; step < 3; ++step) run.step(step);
    checkpoint::save(folder / "step-3", run.state());
    const auto rank = static_cast<size_t>(world.rank);
    means[rank] = run.model().norm->running_mean.clone();
    plains[rank] = run.model().plain.detach().clone();
    masks[rank] = run.noise().mask({50});
  });
  EXPECT_FALSE(torch::equal(means[0], means[1]));
  EXPECT_FALSE(torch::equal(plains[0], plains[1]));
  EXPECT_FALSE(torch::equal(masks[0], masks[1]));
  run_ranks(3, [&](const World& world) {
    TrainingRun run(world, {Strategy::kOptimGrads, 1, 3}, kSeed + 1);
    EXPECT_EQ(checkpoint::load(folder / "step-3", run.state()).world_size, 2);
    const auto rank = static_cast<size_t>(world.rank % 2);
    EXPECT_TRUE(torch::equal(run.model().norm->running_mean, means[rank]));
    EXPECT_TRUE(torch::equal(run.model().plain.detach(), plains[rank]));
    EXPECT_TRUE(torch::equal(run.noise().mask({50}), masks[rank]));
    EXPECT_TRUE(std::isfinite(run.step(3)));
  });
}

// Numbers of which each rank has a part, unevenly.
class CutNumbers : public checkpoint::Stateful {
 public:
  CutNumbers(const World& world, int64_t factor)
      : begin_(cut(world.rank, world.size)),
        numbers_(torch::arange(begin_, cut(world.rank + 1, world.size)).to(torch::kLong) * factor) {}

  void save(checkpoint::StateSink& sink) override { sink.slice(slice()); }
  void load(checkpoint::StateSource& source) override { source.slice(slice()); }
  void before_read() override { ++times_warned_; }
  void loaded() override { ++times_loaded_; }

  void expect_times(int64_t factor) const {
    EXPECT_TRUE(torch::equal(numbers_, torch::arange(begin_, begin_ + numbers_.numel()).to(torch::kLong) * factor));
    EXPECT_EQ(times_warned_, 1);
    EXPECT_EQ(times_loaded_, 1);
  }

 private:
  static int64_t cut(int64_t rank, int64_t size) { return 77 * rank * rank / (size * size); }
  checkpoint::TensorSlice slice() const { return {"numbers", {7, 11}, begin_, begin_ + numbers_.numel(), numbers_}; }

  int64_t begin_;
  torch::Tensor numbers_;
  int times_warned_ = 0;
  int times_loaded_ = 0;
};

std::shared_ptr<torch::nn::LinearImpl> make_linear(const World& world, uint64_t seed, torch::ScalarType dtype) {
  const auto linear = make_seeded(seed, [] { return std::make_shared<torch::nn::LinearImpl>(7, 5); });
  linear->to(dtype);
  fully_shard(*linear, Mesh::shard(world));
  return linear;
}

TEST(CheckpointElasticState, OfTheProgramsOwnIsCutAnew) {
  const TemporaryFolder folder;
  for (const int size : {3, 1, 4, 2}) {
    run_ranks(size, [&](const World& world) {
      const auto linear = make_linear(world, kSeed, torch::kFloat);
      CutNumbers numbers(world, size == 3 ? 5 : 1);
      const checkpoint::State state{
          .model = *linear, .optimizer = {}, .more_optimizers = {}, .others = {{"numbers", &numbers}}};
      if (size == 3) {
        checkpoint::save(folder / "step-1", state);
      } else {
        checkpoint::load(folder / "step-1", state);
        numbers.expect_times(5);
      }
    });
  }
}

// Into main weights of another dtype.
TEST(CheckpointElasticState, IsConverted) {
  for (const auto& [from, to] :
       {std::pair(torch::kFloat, torch::kBFloat16), std::pair(torch::kBFloat16, torch::kFloat)}) {
    const TemporaryFolder folder;
    run_ranks(2, [&, from = from](const World& world) {
      const auto linear = make_linear(world, kSeed, from);
      checkpoint::save(folder / "step-1", {.model = *linear});
    });
    const LogicalTensors saved = read_logical_tensors(folder / "step-1");
    run_ranks(3, [&, to = to](const World& world) {
      const auto linear = make_linear(world, kSeed + 1, to);
      checkpoint::load(folder / "step-1", {.model = *linear});
      for (const auto& [name, leaf] : named_parameters(*linear)) {
        const LocalRange range = local_range(leaf);
        const torch::Tensor expected = saved.at("model/" + name).flatten().slice(0, range.begin, range.end).to(to);
        EXPECT_EQ(leaf.scalar_type(), to);
        EXPECT_TRUE(torch::equal(leaf.detach(), expected)) << name;
      }
    });
  }
}

}  // namespace
}  // namespace fsdp::elastic_test
