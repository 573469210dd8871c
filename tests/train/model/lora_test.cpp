// Training of adapters: against explicit arithmetic on merged weights, over any number of ranks, and what it holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "io/weights/adapter.h"
#include "tests/train/model/tuning_run.h"
#include "train/model/adapters/principal_start.h"

namespace fsdp {
namespace {

using testing::AnswerBatches;
using testing::base_choice;
using testing::expect_slices;
using testing::kTuningSeed;
using testing::kTuningSteps;
using testing::load_base;
using testing::run_ranks;
using testing::TuningPlan;
using testing::TuningRun;

TuningPlan lora_plan(const std::string& targets = "all-linear") {
  TuningPlan plan;
  plan.tune.method = "lora";
  plan.tune.lora_rank = 3;
  plan.tune.lora_alpha = 7.5;
  plan.tune.lora_targets = targets;
  return plan;
}

struct Factors {
  at::Tensor base, a, b;
};

// The decoder has no adapter: its weights are W + alpha / r B A, and the chain rule gives dB and dA from dW.
class MergedTraining {
 public:
  explicit MergedTraining(const TuningPlan& plan) : scale_(plan.tune.lora_alpha / double(plan.tune.lora_rank)) {
    models::Decoder adapted(base_choice().config);
    models::add_lora(adapted, *train::choose_tuning(plan.tune, base_choice()).lora, kTuningSeed);
    for (const auto& item : adapted->named_parameters()) {
      if (!io::is_adapter_name(item.key())) continue;
      const std::string module = item.key().substr(0, item.key().size() - std::string(".lora_A.weight").size());
      Factors& factors = factors_[module];
      factors.base = model_->named_parameters()[module + ".weight"].detach().clone();
      (item.key().ends_with("lora_A.weight") ? factors.a : factors.b) = item.value().detach().clone();
    }
  }

  std::vector<double> train() {
    std::vector<at::Tensor> trained;
    for (auto& [module, factors] : factors_) {
      trained.push_back(factors.a.requires_grad_());
      trained.push_back(factors.b.requires_grad_());
    }
    return testing::train_plainly(
        model_, trained, [this] { merge(); }, [this] { differentiate(); });
  }

  std::map<std::string, at::Tensor> expected() const {
    std::map<std::string, at::Tensor> parameters;
    for (const auto& [module, factors] : factors_) {
      parameters[module + ".lora_A.weight"] = factors.a;
      parameters[module + ".lora_B.weight"] = factors.b;
    }
    return parameters;
  }

 private:
  void merge() {
    const at::NoGradGuard no_grad;
    for (auto& [module, factors] : factors_) weight(module).copy_(factors.base + scale_ * factors.b.mm(factors.a));
  }

  void differentiate() {
    const at::NoGradGuard no_grad;
    for (auto& [module, factors] : factors_) {
      const at::Tensor gradient = scale_ * weight(module).grad();
      factors.a.mutable_grad() = factors.b.t().mm(gradient);
      factors.b.mutable_grad() = gradient.mm(factors.a.t());
    }
  }

  at::Tensor weight(const std::string& module) { return model_->named_parameters()[module + ".weight"]; }

  double scale_;
  models::Decoder model_ = load_base();
  std::map<std::string, Factors> factors_;
};

std::map<std::string, at::Tensor> base_weights() {
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : load_base()->named_parameters()) weights[item.key()] = item.value();
  return weights;
}

void expect_trains_like_merged(const TuningPlan& plan, const std::vector<int>& worlds) {
  MergedTraining reference(plan);
  const std::vector<double> losses = reference.train();
  for (const int ranks : worlds) {
    run_ranks(ranks, [&](const World& world) {
      SCOPED_TRACE(c10::str("rank ", world.rank, " of ", ranks, ", ", plan.shard.strategy));
      TuningRun run(world, plan);
      for (const double expected : losses) EXPECT_NEAR(run.step(), expected, 3e-6 * expected);
      expect_slices(run.model(), reference.expected(), 1e-4);
      expect_slices(run.model(), base_weights(), 0);
    });
  }
}

// The base's weights lie side by side, frozen; adapters add to each result.
TEST(Lora, TrainsOnFusedProjections) {
  TuningPlan plan = lora_plan();
  plan.projections = "fused";
  expect_trains_like_merged(plan, {1, 2});
}

TEST(Lora, TrainsLikeMergedWeightsOnAnyNumberOfRanks) { expect_trains_like_merged(lora_plan(), {1, 2, 4}); }

TEST(Lora, SomeTargetsAndRecompute) {
  TuningPlan plan = lora_plan("q_proj, v_proj");
  plan.micro_rows = 1;
  plan.recomputation.what = train::Recompute::kBlock;
  expect_trains_like_merged(plan, {1, 2});
}

TEST(Lora, EveryStrategy) {
  for (const char* strategy : {"no_shard", "optim", "optim_grads", "hybrid"}) {
    TuningPlan plan = lora_plan("down_proj,o_proj");
    plan.shard.strategy = strategy;
    plan.shard.replicas = plan.shard.strategy == "hybrid" ? 2 : 1;
    expect_trains_like_merged(plan, {plan.shard.strategy == "hybrid" ? 4 : 2});
  }
}

// Groups of frozen and of trained parameters are gathered alike; only the latter are reduced.
TEST(Lora, GathersTheBaseAndReducesAdaptersOnly) {
  if (testing::one_copy_of_weights()) GTEST_SKIP() << "nothing is gathered";
  run_ranks(2, [&](const World& world) {
    TuningRun run(world, lora_plan());
    run.step();
    run.model().root.reset_counters();
    run.step();
    const int64_t layers = base_choice().config.num_hidden_layers, micros = AnswerBatches::kRows / 2 / 2;
    const int64_t groups = 2 * layers + 1;  // the root is frozen whole
    const int64_t kept = 3;                 // of the last block and the root, from the forward to the backward
    EXPECT_EQ(run.model().root.counters().gathers, micros * (2 * groups - kept));
    EXPECT_EQ(run.model().root.counters().reduces, micros * layers);
  });
}

TEST(Lora, HoldsGradientsAndMomentsOfAdaptersOnly) {
  for (const char* precision : {"fp32", "bf16"}) {
    run_ranks(2, [&](const World& world) {
      TuningPlan plan = lora_plan();
      plan.shard.precision = precision;
      TuningRun run(world, plan);
      run.step();
      const int64_t adapters = train::trainable_size(run.model()).local_bytes;
      const RestingBytes resting = run.model().root.resting_bytes();
      EXPECT_GE(resting.main_grad, adapters);
      EXPECT_LE(resting.main_grad, adapters + world.size * resting.padding);
      EXPECT_EQ(run.trainer().optimizer_bytes(), 2 * resting.main_grad);
      EXPECT_LT(adapters, resting.main_weight / 2);
      for (const auto& [name, leaf] : named_parameters(*run.model().decoder)) {
        if (io::is_adapter_name(name)) continue;
        EXPECT_FALSE(leaf.requires_grad()) << name;
        EXPECT_FALSE(leaf.grad().defined()) << name;
        EXPECT_EQ(leaf.scalar_type(), plan.shard.precision == "bf16" ? at::kBFloat16 : at::kFloat) << name;
      }
    });
  }
}

TEST(Lora, BaseInBf16TrainsNearFp32) {
  run_ranks(2, [&](const World& world) {
    TuningPlan plan = lora_plan();
    TuningRun exact(world, plan);
    plan.shard.precision = "bf16";
    TuningRun rounded(world, plan);
    for (int step = 0; step < kTuningSteps; ++step) EXPECT_NEAR(rounded.step(), exact.step(), 3e-2);
  });
}

TuningPlan dora_plan() {
  TuningPlan plan = lora_plan();
  plan.tune.lora_kind = "dora";
  return plan;
}

// m / |W + s B A| (W + s B A), with m trained from |W| on, the norms constants: written into the weights of a decoder
// without adapters, and differentiated by LibTorch in fp64.
class DoraTraining {
 public:
  explicit DoraTraining(const TuningPlan& plan) : scale_(plan.tune.lora_alpha / double(plan.tune.lora_rank)) {
    models::Decoder adapted(base_choice().config);
    models::add_lora(adapted, *train::choose_tuning(plan.tune, base_choice()).lora, kTuningSeed);
    const auto values = adapted->named_parameters();
    for (const auto& [name, linear] : models::linears_in_blocks(adapted)) {
      Map& map = maps_[name];
      map.weight = model_->named_parameters()[name + ".weight"];
      map.base = map.weight.detach().to(at::kDouble);
      map.a = values[name + ".lora_A.weight"].detach().clone().requires_grad_();
      map.b = values[name + ".lora_B.weight"].detach().clone().requires_grad_();
      map.length = map.base.norm(2, 1).to(at::kFloat).requires_grad_();
      map.start = map.length.detach().clone();
    }
  }

  std::vector<double> train() {
    std::vector<at::Tensor> trained;
    for (auto& [name, map] : maps_) trained.insert(trained.end(), {map.a, map.b, map.length});
    return testing::train_plainly(
        model_, trained, [this] { compute(); }, [this] { differentiate(); });
  }

  std::map<std::string, at::Tensor> expected() const {
    std::map<std::string, at::Tensor> parameters;
    for (const auto& [name, map] : maps_) {
      parameters[name + ".lora_A.weight"] = map.a;
      parameters[name + ".lora_B.weight"] = map.b;
      parameters[name + ".lora_magnitude_offset"] = map.length.detach() - map.start;
    }
    return parameters;
  }

 private:
  struct Map {
    at::Tensor weight, base, a, b, length, start, result;
  };

  void compute() {
    for (auto& [name, map] : maps_) {
      const at::Tensor sum = map.base + scale_ * map.b.to(at::kDouble).mm(map.a.to(at::kDouble));
      map.result = (map.length.to(at::kDouble) / sum.detach().norm(2, 1)).unsqueeze(1) * sum;
      const at::NoGradGuard no_grad;
      map.weight.copy_(map.result);
    }
  }

  void differentiate() {
    for (auto& [name, map] : maps_) {
      for (const at::Tensor& each : {map.a, map.b, map.length}) each.mutable_grad() = at::Tensor();
      map.result.backward(map.weight.grad().to(at::kDouble));
    }
  }

  double scale_;
  models::Decoder model_ = load_base();
  std::map<std::string, Map> maps_;
};

TEST(Lora, DoraTrainsLikeItsFormulaOnAnyNumberOfRanks) {
  DoraTraining reference(dora_plan());
  const std::vector<double> losses = reference.train();
  EXPECT_LT(losses.back(), losses.front());
  for (const int ranks : {1, 2, 4}) {
    run_ranks(ranks, [&](const World& world) {
      TuningPlan plan = dora_plan();
      plan.recomputation.what = ranks == 2 ? train::Recompute::kBlock : train::Recompute::kNone;
      plan.projections = ranks == 4 ? "fused" : "separate";
      TuningRun run(world, plan);
      for (const double expected : losses) EXPECT_NEAR(run.step(), expected, 3e-6 * expected) << ranks;
      expect_slices(run.model(), reference.expected(), 1e-4);
      expect_slices(run.model(), base_weights(), 0);
    });
  }
}

// Codes stand for other numbers than those in the file, so each base begins at its own loss.
TEST(Lora, DoraBeginsAsItsBaseInBf16AndIn4Bits) {
  for (const char* base : {"bf16", "nf4"}) {
    run_ranks(2, [&](const World& world) {
      TuningPlan plan = lora_plan();
      plan.tune.base = base;
      plan.shard.precision = "bf16";
      TuningRun plain(world, plan);
      plan.tune.lora_kind = "dora";
      TuningRun dora(world, plan);
      EXPECT_EQ(dora.step(), plain.step()) << base;
      for (int step = 1; step < kTuningSteps; ++step) EXPECT_NEAR(dora.step(), plain.step(), 3e-2) << base;
    });
  }
}

// The factors are those of the singular value decomposition, and a subspace that was searched is near the best one.
TEST(Lora, PrincipalFactorsAreThoseOfTheLargestSingularValues) {
  const at::Tensor weight = at::empty({40, 24}, at::kFloat);
  models::fill_normal(weight, 1, kTuningSeed, "weight");
  const auto best = at::linalg_svd(weight.to(at::kDouble), false);
  const auto part = [&](int64_t rank) {
    const auto& [u, s, vh] = best;
    return (u.narrow(1, 0, rank) * s.narrow(0, 0, rank)).mm(vh.narrow(0, 0, rank));
  };
  for (const int64_t rank : {1, 5, 24}) {
    const auto [a, b] = train::principal_factors(weight, rank, 2.5, 1, "name");
    EXPECT_EQ(a.sizes(), (at::IntArrayRef{rank, 24}));
    EXPECT_LE((2.5 * b.mm(a) - part(rank)).abs().max().item<double>(), 1e-5) << rank;
    // Neither factor is the larger one: B^T B = A A^T.
    EXPECT_LE((b.t().mm(b) - a.mm(a.t())).abs().max().item<double>(), 1e-4) << rank;
  }
  at::Tensor large = at::empty({train::kExactSize + 26, train::kExactSize + 6}, at::kFloat);
  models::fill_normal(large, 0.01, kTuningSeed, "large");
  at::Tensor outer = at::empty({large.size(0), 6}, at::kFloat), inner = at::empty({6, large.size(1)}, at::kFloat);
  models::fill_normal(outer, 1, kTuningSeed, "outer");
  models::fill_normal(inner, 1, kTuningSeed, "inner");
  large.add_(outer.mm(inner));
  const auto [a, b] = train::principal_factors(large, 6, 1, 1, "large");
  const double left = (large - b.mm(a)).norm().item<double>(), noise = 0.01 * std::sqrt(double(large.numel()));
  EXPECT_LT(left, 1.001 * noise);
  EXPECT_TRUE(torch::equal(train::principal_factors(large, 6, 1, 1, "large").a, a));
}

// What the base lacks, the adapters hold: the model is the base, in every world the same to the bit.
TEST(Lora, PissaBeginsAsTheBaseOnAnyNumberOfRanks) {
  std::map<std::string, at::Tensor> whole;
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](const World& world) {
      TuningPlan plan = lora_plan();
      plan.tune.lora_init = "pissa";
      TuningRun run(world, plan);
      for (const auto& [name, leaf] : named_parameters(*run.model().decoder)) {
        if (ranks == 1) {
          whole[name] = leaf.detach().clone();
        } else {
          const LocalRange range = local_range(leaf);
          EXPECT_TRUE(torch::equal(leaf.detach().view(-1), whole[name].view(-1).slice(0, range.begin, range.end)))
              << name;
        }
      }
      if (ranks > 1) return;
      const models::Decoder base = load_base();
      const at::Tensor ids = AnswerBatches(0, 1, AnswerBatches::kRows, base->config().vocab_size, kTuningSeed)
                                 .microbatch(0, 0)
                                 .input_ids_BT;
      const at::NoGradGuard no_grad;
      const ForwardOnly scope(run.model().root);
      models::Decoder plain = base;
      const at::Tensor expected = plain->forward(ids);
      EXPECT_LE((run.model().decoder->forward(ids) - expected).abs().max().item<double>(),
                1e-5 * expected.abs().max().item<double>());
    });
  }
  const std::string map = "model.layers.0.mlp.up_proj";
  const at::Tensor base = base_weights().at(map + ".weight"), left = whole.at(map + ".weight").view_as(base);
  const at::Tensor values = std::get<1>(at::linalg_svd(base.detach())), values_left = std::get<1>(at::linalg_svd(left));
  EXPECT_NEAR(values_left[0].item<double>(), values[3].item<double>(), 1e-5);  // rank 3 went into the adapter
}

// The residual is what becomes codes (QPiSSA): nearer to the base than codes of all of it.
TEST(Lora, PissaLeavesCodesLessToErrOn) {
  run_ranks(2, [&](const World& world) {
    std::vector<double> losses;
    for (const auto& [base, init] : {std::pair{"bf16", "random"}, {"nf4", "random"}, {"nf4", "pissa"}}) {
      TuningPlan plan = lora_plan();
      plan.tune.base = base;
      plan.tune.lora_init = init;
      plan.tune.lora_rank = 12;
      losses.push_back(TuningRun(world, plan).step());
    }
    EXPECT_LT(std::abs(losses[2] - losses[0]), std::abs(losses[1] - losses[0]));
  });
}

TEST(Lora, RefusesWhatCannotBe) {
  const auto message = [](const TuningPlan& plan, const train::ModelChoice& choice) {
    try {
      train::choose_tuning(plan.tune, choice);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message(lora_plan("q_prj"), base_choice()).find("'q_prj', expected all-linear, or some of q_proj, k_proj"),
            std::string::npos);
  EXPECT_NE(message(lora_plan(","), base_choice()).find("got none"), std::string::npos);
  EXPECT_NE(message(lora_plan(), {base_choice().config, {}}).find("random weights"), std::string::npos);
  TuningPlan pissa = dora_plan();
  pissa.tune.lora_init = "pissa";
  EXPECT_NE(message(pissa, base_choice()).find("tune.lora_init: got pissa with tune.lora_kind = \"dora\""),
            std::string::npos);
  TuningPlan both = lora_plan();
  both.tune.frozen = "model.norm.*";
  EXPECT_NE(message(both, base_choice()).find("Leave them out"), std::string::npos);
}

}  // namespace
}  // namespace fsdp
