// Training of adapters whose base rests as NF4 codes: against LibTorch alone on the decoded weights, over any number of
// ranks, and what it holds and sends.
#include <gtest/gtest.h>

#include "io/weights/adapter.h"
#include "io/weights/nf4_names.h"
#include "kernels/products/nf4_linear.h"
#include "models/nf4_base.h"
#include "tests/train/model/tuning_run.h"

namespace fsdp::nf4_training_test {
namespace {

using testing::base_choice;
using testing::kTuningSeed;
using testing::run_ranks;
using testing::TuningPlan;
using testing::TuningRun;

TuningPlan nf4_plan() {
  TuningPlan plan;
  plan.tune.method = "lora";
  plan.tune.lora_rank = 3;
  plan.tune.lora_alpha = 7.5;
  plan.tune.base = "nf4";
  return plan;
}

// The base with its blocks' linear maps as NF4 keeps them.
models::Decoder decoded_base() {
  models::Decoder base = testing::load_base();
  const at::NoGradGuard no_grad;
  for (const auto& [name, module] : models::linears_in_blocks(base)) {
    const at::Tensor codes = kernels::encode_nf4(module->weight);
    module->weight.copy_(kernels::decode_nf4(codes, module->out_features(), module->in_features(), at::kFloat));
  }
  return base;
}

struct PlainTraining {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> adapters;
};

PlainTraining train_plainly(const TuningPlan& plan) {
  models::Decoder model = decoded_base();
  models::add_lora(model, *train::choose_tuning(plan.tune, base_choice()).lora, kTuningSeed);
  PlainTraining plain;
  std::vector<at::Tensor> trained;
  for (const auto& item : model->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    trained.push_back(item.value());
    plain.adapters[item.key()] = item.value();
  }
  const auto nothing = [] {};
  plain.losses = testing::train_plainly(model, trained, nothing, nothing);
  return plain;
}

void expect_trains_like(const PlainTraining& plain, const TuningPlan& plan, int ranks) {
  run_ranks(ranks, [&](const World& world) {
    SCOPED_TRACE(c10::str("rank ", world.rank, " of ", ranks, ", ", plan.shard.strategy));
    TuningRun run(world, plan);
    for (const double expected : plain.losses) EXPECT_NEAR(run.step(), expected, 3e-6 * expected);
    testing::expect_slices(run.model(), plain.adapters, 1e-4);
  });
}

TEST(Nf4Training, TrainsLikeDecodedWeightsOnAnyNumberOfRanks) {
  const PlainTraining plain = train_plainly(nf4_plan());
  for (const int ranks : {1, 2, 4}) expect_trains_like(plain, nf4_plan(), ranks);
}

TEST(Nf4Training, EveryStrategyAndRecompute) {
  const PlainTraining plain = train_plainly(nf4_plan());
  for (const char* strategy : {"no_shard", "optim", "optim_grads", "hybrid"}) {
    TuningPlan plan = nf4_plan();
    plan.shard.strategy = strategy;
    plan.shard.replicas = plan.shard.strategy == "hybrid" ? 2 : 1;
    plan.recomputation.what = train::Recompute::kBlock;
    expect_trains_like(plain, plan, plan.shard.strategy == "hybrid" ? 4 : 2);
  }
}

// Each rank's slices of the codes are those of the whole weights' records.
TEST(Nf4Training, EachRankLoadsItsBytes) {
  const models::Decoder base = testing::load_base();
  run_ranks(3, [&](const World& world) {
    TuningPlan plan = nf4_plan();
    const train::Tuning tuning = train::choose_tuning(plan.tune, base_choice());
    models::Decoder whole(base_choice().config);
    train::zero_parameters(*whole);
    train::apply_tuning(tuning, whole, kTuningSeed);
    const auto coded = models::coded_weights(whole);
    train::ShardedModel model = train::parallelize(whole, train::make_mesh(world, 1), train::shard_options(plan.shard));
    train::load_weights(model, *base_choice().weights);
    size_t num_codes = 0;
    for (const auto& [name, leaf] : named_parameters(*model.decoder)) {
      if (!io::is_nf4_name(name)) continue;
      ++num_codes;
      const LocalRange range = local_range(leaf);
      const at::Tensor record = kernels::encode_nf4(base->named_parameters()[coded.at(name).name]);
      EXPECT_EQ(leaf.scalar_type(), at::kByte);
      EXPECT_TRUE(torch::equal(leaf.detach().flatten(), record.slice(0, range.begin, range.end))) << name;
    }
    EXPECT_EQ(num_codes, coded.size());
    EXPECT_EQ(train::num_parameters(model), [&] {
      int64_t count = 0;
      for (const auto& item : base->named_parameters()) count += item.value().numel();
      return count + train::trainable_size(model).parameters;
    }());
  });
}

// By the runtime's account: bytes of codes are a seventh of fp32's and less, and so is what is gathered of them.
TEST(Nf4Training, HoldsAndGathersTheBytesOfCodes) {
  run_ranks(2, [&](const World& world) {
    int64_t held[2] = {}, gathered[2] = {};
    for (const bool coded : {false, true}) {
      TuningPlan plan = nf4_plan();
      plan.tune.base = coded ? "nf4" : "bf16";  // of fp32 here
      TuningRun run(world, plan);
      run.step();
      run.model().root.reset_counters();
      run.step();
      for (const auto& [name, leaf] : named_parameters(*run.model().decoder)) {
        const bool is_map = name.find("_proj.weight") != std::string::npos;
        if (is_map) held[coded] += static_cast<int64_t>(leaf.nbytes());
      }
      gathered[coded] = run.model().root.counters().gather_bytes;
    }
    const double ratio = static_cast<double>(held[1]) / static_cast<double>(held[0]);
    EXPECT_LT(ratio, 0.16);
    EXPECT_GT(ratio, 0.125);
    if (testing::one_copy_of_weights()) return;  // nothing is gathered
    EXPECT_LT(gathered[1], gathered[0]);
  });
}

}  // namespace
}  // namespace fsdp::nf4_training_test
