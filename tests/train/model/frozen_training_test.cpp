// Training of some parameters, while others stay: against LibTorch alone, over any number of ranks.
#include <gtest/gtest.h>

#include "tests/train/model/tuning_run.h"

namespace fsdp {
namespace {

using testing::expect_slices;
using testing::load_base;
using testing::run_ranks;
using testing::TuningPlan;
using testing::TuningRun;

std::map<std::string, at::Tensor> weights_of(const models::Decoder& decoder) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : decoder->named_parameters()) weights[item.key()] = item.value();
  return weights;
}

void expect_trains_alike(const TuningPlan& plan, const std::vector<int>& worlds) {
  models::Decoder reference = load_base();
  train::apply_tuning(train::choose_tuning(plan.tune, testing::base_choice()), reference, 0);
  std::vector<at::Tensor> trained;
  int64_t numel = 0;
  for (const at::Tensor& parameter : reference->parameters()) {
    if (!parameter.requires_grad()) continue;
    trained.push_back(parameter);
    numel += parameter.numel();
  }
  const std::vector<double> losses = testing::train_plainly(
      reference, trained, [] {}, [] {});
  for (const int ranks : worlds) {
    run_ranks(ranks, [&](const World& world) {
      SCOPED_TRACE(c10::str("rank ", world.rank, " of ", ranks));
      TuningRun run(world, plan);
      for (const double expected : losses) EXPECT_NEAR(run.step(), expected, 3e-6 * expected);
      expect_slices(run.model(), weights_of(reference), 1e-4);
      std::map<std::string, at::Tensor> frozen = weights_of(load_base());
      std::erase_if(frozen, [&](const auto& item) {
        const auto& names = run.tuning().frozen;
        return std::find(names.begin(), names.end(), item.first) == names.end();
      });
      EXPECT_FALSE(frozen.empty());
      expect_slices(run.model(), frozen, 0);
      EXPECT_EQ(train::trainable_size(run.model()).parameters, numel);
      EXPECT_EQ(run.trainer().optimizer_bytes(), 2 * run.model().root.resting_bytes().main_grad);
      EXPECT_LT(run.trainer().optimizer_bytes(), 2 * run.model().root.resting_bytes().main_weight);
    });
  }
}

TEST(FrozenTraining, LowerBlocksStay) {
  TuningPlan plan;
  plan.tune.frozen = "model.embed_tokens.*, model.layers.[0-1].*";
  expect_trains_alike(plan, {1, 2, 4});
}

TEST(FrozenTraining, FrozenBetweenTrainedOnes) {
  TuningPlan plan;
  plan.tune.frozen = "*.mlp.*,model.layers.1.*";
  plan.recomputation.what = train::Recompute::kBlock;
  plan.micro_rows = 1;
  expect_trains_alike(plan, {1, 2});
}

TEST(FrozenTraining, NormsOnly) {
  TuningPlan plan;
  plan.tune.trained = "*norm.weight";
  plan.tune.frozen = "model.norm.weight";
  expect_trains_alike(plan, {2});
}

}  // namespace
}  // namespace fsdp
