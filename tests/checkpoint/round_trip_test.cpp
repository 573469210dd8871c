// A run that was saved and goes on in other processes is the run that never stopped, bit for bit, at the same number of
// ranks: for every strategy, precision and optimizer, on a model with something of everything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>

#include <algorithm>
#include <ios>
#include <map>
#include <sstream>

#include "fsdp/fsdp.h"
#include "io/checkpoint/checkpoint_manifest.h"
#include "tests/checkpoint/training_run.h"
#include "tests/io/temporary_folder.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/rank_processes.h"
#include "tests/support/ranks.h"

namespace fsdp::round_trip_test {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using io::read_text;
using io::TemporaryFolder;
using ::testing::Contains;
using testing::expect_same_bits;
using testing::generator;
using testing::make_seeded;
using ::testing::Not;
using testing::OptimizerKind;
using testing::Outcome;
using testing::RankProcesses;
using testing::run_ranks;
using testing::TrainingPlan;
using testing::TrainingRun;

constexpr uint64_t kSeed = 11;
constexpr uint64_t kOtherSeed = 12;
constexpr int kSteps = 6;
constexpr int kSavedAt = 3;

// Steps [first, end) of a run that lives no longer.
struct Stretch {
  int first = 0;
  int end = 0;
  uint64_t seed = 0;
  fs::path from = {};  // loaded first, if any
  fs::path to = {};    // saved last, if any
};

std::vector<Outcome> train(const TrainingPlan& plan, const Stretch& stretch) {
  std::vector<Outcome> outcomes(static_cast<size_t>(plan.world()));
  run_ranks(plan.world(), [&](const World& world) {
    TrainingRun run(world, plan, stretch.seed);
    if (!stretch.from.empty()) {
      const checkpoint::LoadReport report = checkpoint::load(stretch.from, run.state());
      EXPECT_EQ(report.step, stretch.first);
      EXPECT_EQ(report.world_size, world.size);
    }
    Outcome& mine = outcomes[static_cast<size_t>(world.rank)];
    for (int step = stretch.first; step < stretch.end; ++step) mine.losses.push_back(run.step(step));
    mine.tensors = run.tensors();
    if (!stretch.to.empty()) checkpoint::save(stretch.to, run.state());
  });
  return outcomes;
}

// Optimizers, generators and everything else too: the files are the same, and what the manifests say but the time.
void expect_same_checkpoint(const fs::path& actual, const fs::path& expected) {
  const io::CheckpointManifest mine = io::read_manifest(actual);
  const io::CheckpointManifest theirs = io::read_manifest(expected);
  EXPECT_EQ(mine.step, theirs.step);
  EXPECT_EQ(mine.values, theirs.values);
  ASSERT_EQ(mine.tensors.size(), theirs.tensors.size());
  for (size_t i = 0; i < mine.tensors.size(); ++i) EXPECT_EQ(mine.tensors[i].name, theirs.tensors[i].name);
  ASSERT_EQ(mine.files.size(), theirs.files.size());
  for (size_t i = 0; i < mine.files.size(); ++i) {
    EXPECT_TRUE(read_text(actual / mine.files[i].name) == read_text(expected / theirs.files[i].name)) << "file " << i;
  }
}

std::vector<TrainingPlan> plans() {
  const struct {
    Strategy strategy;
    int replicas;
    int shards;
  } places[] = {{Strategy::kNoShard, 1, 2},     {Strategy::kOptim, 1, 3},           {Strategy::kOptimGrads, 1, 3},
                {Strategy::kHybrid, 2, 2},      {Strategy::kHybridZero2, 2, 2},     {Strategy::kHybridOptim, 2, 2},
                {Strategy::kHybridOptim, 3, 1}, {Strategy::kOptimGradsParams, 1, 3}};
  std::vector<TrainingPlan> all;
  for (const bool bf16 : {false, true}) {
    for (const auto& place : places) {
      for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kSGD, OptimizerKind::kMuon}) {
        all.push_back({place.strategy, place.replicas, place.shards, bf16, kind});
      }
    }
    for (const OptimizerKind kind : testing::kOptimizerKinds) {
      all.push_back({Strategy::kOptimGradsParams, 1, 2, bf16, kind});
    }
    all.push_back({Strategy::kOptimGradsParams, 1, 1, bf16, OptimizerKind::kTorchAdamW});
  }
  return all;
}

class CheckpointRoundTrip : public ::testing::TestWithParam<TrainingPlan> {};

TEST_P(CheckpointRoundTrip, ContinuesBitForBit) {
  const TrainingPlan& plan = GetParam();
  const TemporaryFolder whole;
  const TemporaryFolder halves;
  const auto expected = train(plan, {0, kSteps, kSeed, {}, whole / "step-6"});
  train(plan, {0, kSavedAt, kSeed, {}, halves / "step-3"});
  const auto actual = train(plan, {kSavedAt, kSteps, kOtherSeed, halves / "step-3", halves / "step-6"});
  for (size_t rank = 0; rank < expected.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    expect_same_bits(actual[rank], expected[rank], kSavedAt);
  }
  expect_same_checkpoint(halves / "step-6", whole / "step-6");
}

INSTANTIATE_TEST_SUITE_P(Plans, CheckpointRoundTrip, ::testing::ValuesIn(plans()),
                         [](const auto& info) { return info.param.text(); });

class CheckpointRollback : public ::testing::TestWithParam<OptimizerKind> {};

// Into objects that are further on already, with state that the checkpoint does not have.
TEST_P(CheckpointRollback, GoesBackInPlace) {
  const TrainingPlan plan{Strategy::kOptimGradsParams, 1, 2, false, GetParam()};
  const TemporaryFolder folder;
  const auto expected = train(plan, {0, kSteps, kSeed});
  run_ranks(plan.world(), [&](const World& world) {
    TrainingRun run(world, plan, kSeed);
    for (int step = 0; step < testing::kLateJoins; ++step) run.step(step);
    checkpoint::save(folder / "step-2", run.state());
    for (int step = testing::kLateJoins; step < kSteps - 1; ++step) run.step(step);
    checkpoint::load(folder / "step-2", run.state());
    EXPECT_EQ(run.noise().drawn(), testing::kLateJoins);
    FlatOptimizer* const flat = run.optimizer().flat();
    EXPECT_TRUE(flat == nullptr || flat->num_steps() == testing::kLateJoins);
    Outcome mine;
    for (int step = testing::kLateJoins; step < kSteps; ++step) mine.losses.push_back(run.step(step));
    mine.tensors = run.tensors();
    expect_same_bits(mine, expected[static_cast<size_t>(world.rank)], testing::kLateJoins);
  });
}

INSTANTIATE_TEST_SUITE_P(Optimizers, CheckpointRollback, ::testing::ValuesIn(testing::kOptimizerKinds),
                         [](const auto& info) { return testing::name(info.param); });

TEST(CheckpointState, HoldsEachTensorOnceAndNothingThatIsNotThere) {
  const TemporaryFolder folder;
  const TrainingPlan plan{Strategy::kOptimGradsParams, 1, 2};
  train(plan, {0, 1, kSeed, {}, folder / "step-1"});
  std::vector<std::string> names;
  for (const io::CheckpointTensor& tensor : io::read_manifest(folder / "step-1").tensors) names.push_back(tensor.name);
  for (const char* name : {"model/outlet", "model/spare", "model/frozen.weight", "model/late.bias",
                           "model/layers.1.down.weight", "optimizer/step/outlet", "optimizer/exp_avg/tiny"}) {
    EXPECT_THAT(names, Contains(name));
  }
  // Of each rank's own.
  for (const char* name : {"model/plain#0", "model/plain#1", "model/norm.running_mean#1", "noise/stream#0"}) {
    EXPECT_THAT(names, Contains(name));
  }
  // Its second name; a count that is the same on all ranks; what was never updated.
  for (const char* name : {"model/inlet.weight", "model/norm.num_batches_tracked#0", "optimizer/step/spare",
                           "optimizer/step/frozen.weight", "optimizer/exp_avg/late.weight"}) {
    EXPECT_THAT(names, Not(Contains(name)));
  }
}

// ---- generators of random numbers, which ranks that are threads would share

struct Drawing {
  int first = 0;
  int end = 0;
  uint64_t seed = 0;
  fs::path from = {};
  fs::path to = {};
  bool alike = false;  // else rank r draws with the seed + r
};

// One line for each step: its loss, and a number drawn after it.
std::string train_with_dropout(const World& world, const Drawing& drawing) {
  torch::manual_seed(5);
  nn::Sequential model(nn::Linear(5, 16), nn::Dropout(0.5), nn::Linear(16, 3));
  fully_shard(*model, Mesh::shard(world));
  AdamW optimizer(parameters(*model), {.lr = 0.05});
  torch::manual_seed(drawing.seed + (drawing.alike ? 0 : static_cast<uint64_t>(world.rank)));
  const checkpoint::State state{.model = *model, .optimizer = optimizer};
  if (!drawing.from.empty()) checkpoint::load(drawing.from, state);
  std::ostringstream lines;
  lines << std::hexfloat;
  for (int step = drawing.first; step < drawing.end; ++step) {
    const torch::Tensor rows = torch::randn({8, 5}, generator(static_cast<uint64_t>(step)));
    const torch::Tensor loss = model->forward(rows).square().mean();
    loss.backward();
    optimizer.step();
    zero_grad(*model);
    lines << loss.item<double>() << ' ' << torch::rand({1}).item<double>() << '\n';
  }
  if (!drawing.to.empty()) checkpoint::save(drawing.to, state);
  return lines.str();
}

std::vector<std::string> draw_in_processes(int size, const Drawing& drawing) {
  RankProcesses ranks;
  for (int rank = 0; rank < size; ++rank) {
    comm::ConnectOptions options;
    testing::choose_transport(options, rank, size);
    ranks.start(rank, size, options, [&](const World& world) { return train_with_dropout(world, drawing); });
  }
  std::vector<std::string> lines;
  for (int rank = 0; rank < size; ++rank) lines.push_back(ranks.result(rank).text);
  return lines;
}

size_t num_different(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  return static_cast<size_t>(std::unique(texts.begin(), texts.end()) - texts.begin());
}

TEST(CheckpointRandom, EveryRanksStreamGoesOn) {
  const TemporaryFolder folder;
  const auto whole = draw_in_processes(2, {0, kSteps, 100});
  const auto first = draw_in_processes(2, {0, kSavedAt, 100, {}, folder / "step-3"});
  const auto second = draw_in_processes(2, {kSavedAt, kSteps, 200, folder / "step-3"});
  EXPECT_NE(whole[0], whole[1]);
  for (size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(first[rank] + second[rank], whole[rank]) << "rank " << rank;
}

TEST(CheckpointRandom, MoreRanksGetDifferentStreams) {
  const TemporaryFolder folder;
  draw_in_processes(2, {0, 1, 100, {}, folder / "step-1"});
  const auto once = draw_in_processes(3, {1, 2, 200, folder / "step-1"});
  EXPECT_EQ(num_different(once), 3U);
  EXPECT_EQ(once, draw_in_processes(3, {1, 2, 300, folder / "step-1"}));  // derived from what was saved
}

TEST(CheckpointRandom, RanksThatWereAlikeStayAlike) {
  const TemporaryFolder folder;
  const auto whole = draw_in_processes(2, {0, 4, 100, {}, {}, true});
  const auto first = draw_in_processes(2, {0, 2, 100, {}, folder / "step-2", true});
  const auto second = draw_in_processes(3, {2, 4, 200, folder / "step-2", {}, true});
  EXPECT_EQ(num_different(second), 1U);
  // What was drawn is exact; losses of another number of ranks agree but for roundings.
  std::istringstream expected(whole[0].substr(first[0].size()));
  std::istringstream actual(second[0]);
  std::string expected_loss, expected_drawn, actual_loss, actual_drawn;
  while (expected >> expected_loss >> expected_drawn && actual >> actual_loss >> actual_drawn) {
    EXPECT_EQ(actual_drawn, expected_drawn);
    EXPECT_NEAR(std::stod(actual_loss), std::stod(expected_loss), 1e-5);
  }
  EXPECT_FALSE(actual_drawn.empty());
}

// ---- other kinds of models and optimizers

// The first half of the leaves under one optimizer, the second under another.
struct TwoOptimizers {
  explicit TwoOptimizers(const World& world)
      : blocks(testing::shard_blocks(world)), leaves(parameters(*blocks.module)) {
    const auto middle = leaves.begin() + static_cast<std::ptrdiff_t>(leaves.size() / 2);
    adamw = std::make_unique<AdamW>(std::vector<torch::Tensor>(leaves.begin(), middle), AdamWOptions{.lr = 0.02});
    sgd = std::make_unique<torch::optim::SGD>(std::vector<torch::Tensor>(middle, leaves.end()),
                                              torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  checkpoint::State state() {
    return {.model = *blocks.module, .optimizer = *adamw, .more_optimizers = {{"head", *sgd}}, .others = {}};
  }
  void train(const World& world, uint64_t first, uint64_t end) {
    for (uint64_t step = first; step < end; ++step) {
      testing::loss_of(*blocks.module, testing::share_of(world, testing::batch(step))).backward();
      adamw->step();
      sgd->step();
      zero_grad(*blocks.module);
    }
  }
  std::vector<torch::Tensor> weights() const {
    std::vector<torch::Tensor> list;
    for (const torch::Tensor& leaf : leaves) list.push_back(leaf.detach().clone());
    return list;
  }

  testing::ShardedBlocks blocks;
  std::vector<torch::Tensor> leaves;
  std::unique_ptr<AdamW> adamw;
  std::unique_ptr<torch::optim::SGD> sgd;
};

TEST(CheckpointState, HasSeveralOptimizersOfOneModel) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    TwoOptimizers whole(world);
    whole.train(world, 0, 2);
    checkpoint::save(folder / "step-2", whole.state());
    whole.train(world, 2, 5);
    TwoOptimizers again(world);
    again.train(world, 7, 8);
    checkpoint::load(folder / "step-2", again.state());
    again.train(world, 2, 5);
    expect_same_bits(again.weights(), whole.weights());
  });
}

torch::jit::Module make_script(uint64_t seed) {
  torch::jit::Module module("m");
  module.register_parameter("weight", torch::randn({4, 5}, generator(seed)).requires_grad_(), false);
  module.register_parameter("bias", torch::randn({4}, generator(seed + 1)).requires_grad_(), false);
  module.register_buffer("scale", torch::rand({4}, generator(seed + 2)));
  module.define("def forward(self, x):\n  return torch.linear(x, self.weight, self.bias) * self.scale\n");
  return module;
}

TEST(CheckpointState, OfATorchScriptModule) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    const auto train = [&](torch::jit::Module& module, torch::optim::Optimizer& optimizer, uint64_t step) {
      module.forward({testing::share_of(world, testing::batch(step))}).toTensor().square().mean().backward();
      optimizer.step();
      zero_grad(module);
    };
    const auto options = torch::optim::SGDOptions(0.05).momentum(0.9);
    torch::jit::Module whole = make_script(1);
    fully_shard(whole, Mesh::shard(world));
    torch::optim::SGD optimizer(parameters(whole), options);
    train(whole, optimizer, 0);
    checkpoint::save(folder / "step-1", {.model = whole, .optimizer = optimizer});
    train(whole, optimizer, 1);

    torch::jit::Module again = make_script(9);
    fully_shard(again, Mesh::shard(world));
    torch::optim::SGD other(parameters(again), options);
    checkpoint::load(folder / "step-1", {.model = again, .optimizer = other});
    train(again, other, 1);
    expect_same_bits(parameters(again), parameters(whole));
    EXPECT_TRUE(torch::equal(again.attr("scale").toTensor(), whole.attr("scale").toTensor()));
  });
}

// A frozen base stays out of the checkpoint, and as it is.
TEST(CheckpointState, LeavesAloneWhatIsNotKept) {
  const TemporaryFolder folder;
  const auto make = [](uint64_t seed) {
    return make_seeded(seed, [] { return nn::Sequential(nn::Linear(6, 6), nn::Linear(6, 4)); });
  };
  run_ranks(2, [&](const World& world) {
    nn::Sequential one = make(kSeed), other = make(kOtherSeed);
    for (nn::Sequential* model : {&one, &other}) {
      for (torch::Tensor& frozen : (*model)[0]->parameters()) frozen.requires_grad_(false);
      fully_shard(**model, Mesh::shard(world));
    }
    const auto keeps = [](const std::string& name) { return name.starts_with("1."); };
    checkpoint::save(folder / "step-1", {.model = *one, .keeps = keeps});
    const std::string manifest = read_text(folder / "step-1/manifest.json");
    EXPECT_THAT(manifest, ::testing::HasSubstr("model/1.weight"));
    EXPECT_THAT(manifest, Not(::testing::HasSubstr("model/0.weight")));
    std::map<std::string, torch::Tensor> before;
    for (const auto& [name, leaf] : named_parameters(*other)) before[name] = leaf.detach().clone();
    const auto wanted = named_parameters(*one);
    checkpoint::load(folder / "step-1", {.model = *other, .keeps = keeps});
    size_t i = 0;
    for (const auto& [name, leaf] : named_parameters(*other)) {
      EXPECT_TRUE(torch::equal(leaf, keeps(name) ? wanted[i].second : before.at(name))) << name;
      ++i;
    }
    // All of it does not fit, a part of all does, and what trains may not stay out.
    EXPECT_THAT(testing::error_of([&] { checkpoint::load(folder / "step-1", {.model = *other}); }),
                ::testing::HasSubstr("model/0.weight is missing"));
    checkpoint::save(folder / "step-2", {.model = *one});
    checkpoint::load(folder / "step-2", {.model = *other, .keeps = keeps});
    EXPECT_THAT(testing::error_of([&] {
                  checkpoint::save(folder / "step-3",
                                   {.model = *one, .keeps = [](const std::string&) { return false; }});
                }),
                ::testing::HasSubstr("which trains"));
  });
}

}  // namespace
}  // namespace fsdp::round_trip_test
