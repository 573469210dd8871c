// Plans of decoders with experts, all on each rank or spread over ranks (ep).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "models/config/presets.h"
#include "plan/axes.h"
#include "plan/forecast/forecast.h"
#include "plan/rank_part.h"
#include "plan/report.h"
#include "plan/search/search.h"
#include "plan/time/hardware.h"
#include "tests/plan/complaint.h"

namespace fsdp::plan::expert_plan_test {
namespace {

using ::testing::HasSubstr;

const models::DecoderConfig& mixtral() { return models::find_preset("mixtral-8x7b")->config; }
PlannedModel model_of(const models::DecoderConfig& config) { return decoder_model("experts", config); }

// config.json of deepseek-ai/DeepSeek-V2-Lite.
models::DecoderConfig deepseek_v2_lite() {
  const auto json = nlohmann::json::parse(R"({"model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 2048,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16,
    "num_key_value_heads": 16, "n_shared_experts": 2, "n_routed_experts": 64, "num_experts_per_tok": 6,
    "routed_scaling_factor": 1.0, "kv_lora_rank": 512, "q_lora_rank": null, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "qk_nope_head_dim": 128, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "moe_layer_freq": 1,
    "first_k_dense_replace": 1, "norm_topk_prob": false, "scoring_func": "softmax", "hidden_act": "silu",
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-06, "rope_theta": 10000, "tie_word_embeddings": false})");
  return models::parse_decoder_config(json, "DeepSeek-V2-Lite");
}

Setup setup_of(int64_t shards, int64_t experts) {
  plan::Setup setup;
  setup.shards = shards;
  setup.experts = experts;
  setup.precision = parse_planned_precision("bf16");
  setup.work.sequence_length = 4096;
  return setup;
}

const TrafficLine* exchanges(const Report& report) {
  for (const TrafficLine& line : report.traffic.lines) {
    if (line.call.kind == CollectiveKind::kExchange) return &line;
  }
  return nullptr;
}

// Beside layers that are cut, and in stages: 16 bytes a parameter over all ranks, but for norms and routers, which
// ranks along tp have alike; of tp's two calls of a block's MLP none is left where there are only experts.
TEST(PlanExperts, BesideCutLayersAndInStages) {
  const models::DecoderConfig config = mixtral();
  for (const auto& [tensor, experts, pipeline] : {std::array<int64_t, 3>{4, 1, 1}, {2, 4, 1}, {1, 8, 4}, {2, 2, 2}}) {
    plan::Setup setup = setup_of(8, experts);
    setup.tensor = tensor;
    setup.pipeline = pipeline;
    setup.work.microbatches = 8;
    double weights = 0;
    for (int64_t place = 0; place < pipeline; ++place) {
      const Report report = make_stage_report(model_of(config), setup, {}, place);
      weights += static_cast<double>(report.memory[Part::kMainWeight]) / 4 * static_cast<double>(setup.stage_ranks());
      EXPECT_EQ(report.parameters, model_of(config).num_parameters());
      for (const TrafficLine& line : report.traffic.lines) {
        if (line.call.axis != CollectiveAxis::kTensor || line.call.kind != CollectiveKind::kGather) continue;
        const int64_t ends = (place == 0 ? 1 : 0) + (place + 1 == pipeline ? 1 : 0);
        EXPECT_EQ(line.call.calls, 8 * (config.num_hidden_layers / pipeline * 2 + ends));
      }
    }
    EXPECT_NEAR(weights / static_cast<double>(model_of(config).num_parameters()), 1, 1e-3) << tensor << experts;
    const Forecast time = forecast(model_of(config), setup, Network{}, time::find_hardware("h100-sxm"));
    EXPECT_GT(time.step.mfu, 0.02) << tensor << experts << pipeline;
    EXPECT_LT(time.step.mfu, 0.7) << tensor << experts << pipeline;
  }
}

// What the models' cards say, in billions.
TEST(PlanExperts, HaveThePublishedSizes) {
  const struct {
    models::DecoderConfig config;
    double parameters, active;
  } published[] = {{mixtral(), 46.7, 12.9},
                   {models::find_preset("qwen3-30b-a3b")->config, 30.5, 3.3},
                   {models::find_preset("qwen3-235b-a22b")->config, 235, 22},
                   {deepseek_v2_lite(), 15.7, 2.66}};  // the card's 2.4 is without the embedding
  for (const auto& each : published) {
    const Report report = make_report(model_of(each.config), setup_of(8, 1));
    EXPECT_NEAR(1e-9 * static_cast<double>(report.parameters), each.parameters, 0.004 * each.parameters);
    EXPECT_NEAR(1e-9 * static_cast<double>(report.active_parameters), each.active, 0.02 * each.active);
    // 6 FLOPs for each matrix parameter that a token meets, and attention.
    const auto embedding = static_cast<double>(each.config.vocab_size * each.config.hidden_size);
    const double products = 6 * (static_cast<double>(report.active_parameters) - embedding);
    EXPECT_GT(report.flops_per_token, 0.999 * products);
    EXPECT_LT(report.flops_per_token, 1.35 * products);
  }
  EXPECT_THAT(to_text(make_report(model_of(mixtral()), setup_of(8, 1))),
              HasSubstr("46.70B parameters, 12.88B for a token, in 33 units"));
}

// 16 bytes a parameter over all ranks, wherever experts are.
TEST(PlanExperts, StateIsSharedByAllRanks) {
  for (const models::DecoderConfig& config : {mixtral(), deepseek_v2_lite()}) {
    for (const int64_t experts : {1, 2, 8}) {
      const Report report = make_report(model_of(config), setup_of(16, experts));
      const double whole = static_cast<double>(report.parameters) / 16;
      EXPECT_NEAR(static_cast<double>(report.memory[Part::kMainWeight]) / (4 * whole), 1, 1e-3) << experts;
      EXPECT_NEAR(static_cast<double>(report.memory[Part::kMainGrad]) / (4 * whole), 1, 1e-3) << experts;
      EXPECT_NEAR(static_cast<double>(report.memory[Part::kOptimizer]) / (8 * whole), 1, 1e-3) << experts;
    }
  }
}

// docs/experts.md: a rank receives the rows for its experts from the others, and its own results, and the same in the
// backward; weights of experts come from the ranks that have the same ones only.
TEST(PlanExperts, RanksReceiveRowsInPlaceOfWeights) {
  const models::DecoderConfig config = mixtral();
  for (const int64_t experts : {2, 8}) {
    plan::Setup setup = setup_of(16, experts);
    setup.work.microbatches = 3;
    const Report report = make_report(model_of(config), setup);
    const TrafficLine* line = exchanges(report);
    ASSERT_NE(line, nullptr);
    EXPECT_EQ(line->call.calls, 3 * 32 * 4);
    const int64_t rows = 4096 * 2 * config.hidden_size * 2;
    EXPECT_EQ(line->call.received_bytes, 3 * 32 * 4 * (rows / experts * (experts - 1)));
    EXPECT_EQ(line->between_nodes, 0);
    const Report all = make_report(model_of(config), setup_of(16, 1));
    EXPECT_EQ(exchanges(all), nullptr);
    EXPECT_LT(report.step.calls.gather_bytes / 3, all.step.calls.gather_bytes * 2 / experts);
    EXPECT_THAT(to_text(report), HasSubstr("exchange activations over ep, if balanced"));
  }
  const Report far = make_report(model_of(config), setup_of(16, 16 / 2));
  EXPECT_LT(far.memory[Part::kGathered], make_report(model_of(config), setup_of(16, 1)).memory[Part::kGathered] / 3);
}

// Nobody has an expert beside the one who has it: no gathers of experts.
TEST(PlanExperts, AreNotGatheredWhereEachIsOnOneRank) {
  const Report report = make_report(model_of(mixtral()), setup_of(8, 8));
  for (const TrafficLine& line : report.traffic.lines) {
    const bool is_of_experts = line.call.of_experts;
    EXPECT_TRUE(!is_of_experts || line.call.received_bytes == 0) << describe(line.call);
  }
}

double product_flops(const time::StepWork& work) {
  double flops = 0;
  for (const time::Passage& passage : work.passages)
    flops += passage.forward.product_flops() + passage.backward.product_flops();
  return flops;
}

TEST(PlanExperts, TimeCountsTheirWay) {
  const time::Hardware hardware = time::find_hardware("h100-sxm");
  for (const models::DecoderConfig& config : {mixtral(), deepseek_v2_lite()}) {
    const Forecast all = forecast(model_of(config), setup_of(16, 1), Network{}, hardware);
    const Forecast spread = forecast(model_of(config), setup_of(16, 8), Network{}, hardware);
    EXPECT_EQ(all.step.activation_ms, 0);
    EXPECT_GT(spread.step.activation_ms, 0);
    EXPECT_GT(all.step.mfu, 0.05);
    EXPECT_LT(all.step.mfu, 0.8);
    EXPECT_NEAR(all.work.model_flops / spread.work.model_flops, 1, 1e-9);
    EXPECT_NEAR(product_flops(spread.work) / product_flops(all.work), 1, 1e-6);
  }
}

// Products of a rank that gets n shares of rows: those of the rest, and n times those of an equal share.
TEST(PlanExperts, OthersWaitForTheBusiestRank) {
  const time::Hardware hardware = time::find_hardware("h100-sxm");
  const auto with = [&](double busiest) {
    plan::Setup setup = setup_of(16, 8);
    setup.work.busiest_experts = busiest;
    return forecast(model_of(mixtral()), setup, Network{}, hardware);
  };
  const Forecast even = with(1), busy = with(1.5), all = with(8);
  const double share = (product_flops(all.work) - product_flops(even.work)) / 7;
  EXPECT_GT(share, 0.5 * product_flops(even.work));  // most of Mixtral are experts
  EXPECT_NEAR((product_flops(busy.work) - product_flops(even.work)) / share, 0.5, 1e-3);
  EXPECT_GT(busy.step.step_ms, even.step.step_ms);
  EXPECT_GT(all.step.step_ms, 3 * even.step.step_ms);
  EXPECT_EQ(busy.work.model_flops, even.work.model_flops);
}

TEST(PlanExperts, ASearchKeepsThem) {
  SearchSpace space;
  space.base = setup_of(64, 8);
  space.memory = int64_t{80} << 30;
  space.precisions = {space.base.precision};
  predict_for(space, time::find_hardware("h100-sxm"));
  const SearchResult result = search(model_of(mixtral()), space);
  for (const auto* list : {&result.best, &result.losers}) {
    for (const Candidate& each : *list) {
      EXPECT_EQ(each.setup.experts, 8);
      EXPECT_EQ(each.setup.shards % 8, 0);
      EXPECT_EQ(each.setup.world(), 64);
    }
  }
}

TEST(PlanExperts, WhatDoesNotFitIsRefused) {
  const auto refused = [](const plan::Setup& setup, const models::DecoderConfig& config) {
    return complaint([&] { make_report(model_of(config), setup); });
  };
  EXPECT_THAT(refused(setup_of(9, 3), mixtral()),
              HasSubstr("[plan] ep: got 3 with 8 experts of a layer, expected one of 1, 2, 4, 8."));
  EXPECT_THAT(refused(setup_of(6, 4), mixtral()), HasSubstr("[plan] ep: got 4 in shard groups of 6 ranks"));
  EXPECT_THAT(refused(setup_of(4, 2), models::find_preset("llama-2-7b")->config),
              HasSubstr("which has no experts, expected 1"));
  plan::Setup busy = setup_of(8, 4);
  busy.work.busiest_experts = 5;
  EXPECT_THAT(refused(busy, mixtral()), HasSubstr("busiest experts: got 5 times an equal share with ep 4"));
  busy.work.busiest_experts = 0.5;
  EXPECT_THAT(refused(busy, mixtral()), HasSubstr("expected a number from 1 to that"));
  busy.experts = 1;
  busy.work.busiest_experts = 1.5;
  EXPECT_THAT(refused(busy, models::find_preset("llama-2-7b")->config), HasSubstr("with ep 1"));
  plan::Setup setup = setup_of(4, 2);
  setup.optimizer = Optimizer::kMuon;
  EXPECT_THAT(refused(setup, mixtral()), HasSubstr("ep: got it with optimizer muon"));
}

}  // namespace
}  // namespace fsdp::plan::expert_plan_test
