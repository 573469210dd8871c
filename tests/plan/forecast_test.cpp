// Plans in time, against what paper says of tiny models on machines that do not exist.
#include "plan/forecast/forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/base/error.h"
#include "models/config/family.h"
#include "models/config/presets.h"
#include "plan/forecast/planned_work.h"
#include "plan/forecast/timeline_file.h"
#include "plan/report.h"

namespace fsdp::plan::forecast_test {
namespace {

using ::testing::HasSubstr;

constexpr double kInstant = 1e30;  // of a rate that takes no time

// Two layers of 8 features, two heads of 4, 16 inside, 32 words.
models::DecoderConfig tiny_config() {
  models::DecoderConfig config = models::family_config("llama");
  config.hidden_size = 8;
  config.intermediate_size = 16;
  config.num_hidden_layers = 2;
  config.num_attention_heads = config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.vocab_size = 32;
  config.tie_word_embeddings = false;
  return config;
}

PlannedModel preset_model(const std::string& name) { return decoder_model(name, models::find_preset(name)->config); }

// Nothing but products, or nothing but bytes on links, takes time on it.
time::Hardware made_up(double flops, double node, double network) {
  time::Hardware hardware;
  hardware.name = "made up";
  hardware.peak_flops = {{time::Dtype::kFp32, flops}, {time::Dtype::kBf16, flops}};
  hardware.memory_bytes_per_second = kInstant;
  hardware.node = {node, 0};
  hardware.network = {network, 0};
  return hardware;
}

Setup small_setup(int64_t replicas, int64_t shards, Strategy strategy = Strategy::kOptimGradsParams) {
  plan::Setup setup;
  setup.replicas = replicas;
  setup.shards = shards;
  setup.strategy = strategy;
  setup.work.sequence_length = 16;
  return setup;
}

// A layer multiplies by 4 matrices of 8 x 8 and 3 of 8 x 16, the head by one of 32 x 8; a token sees (16 + 1) / 2
// tokens. Forward 2 operations a parameter, backward 4; attention 4 and 10 a feature and token seen, of which the
// formula of MFU counts 12.
TEST(PlanForecast, ComputingTakesItsOperations) {
  const Forecast result = forecast(decoder_model("tiny", tiny_config()), small_setup(1, 1), {}, made_up(1e6, 1, 1));
  const double matrices = 2 * (4 * 8 * 8 + 3 * 8 * 16) + 32 * 8, seen = 2 * 8 * 8.5;
  const double operations = 16 * (6 * matrices + 14 * seen);
  EXPECT_NEAR(result.step.step_ms, 1e3 * operations / 1e6, 1e-6);
  EXPECT_NEAR(result.step.mfu, (6 * matrices + 12 * seen) / (6 * matrices + 14 * seen), 1e-9);
  EXPECT_NEAR(result.tokens_per_second(), 16e6 / operations, 1e-6);
  EXPECT_EQ(result.limiting(), "compute");
  EXPECT_DOUBLE_EQ(result.exposed_ms(), 0);
}

TEST(PlanForecast, ModelOperationsAreThoseOfTheReport) {
  for (const char* preset : {"smollm2-135m", "smollm3-3b", "llama-3.1-70b"}) {
    plan::Setup setup = small_setup(1, 8);
    setup.work.sequence_length = 4096;
    const PlannedModel model = preset_model(preset);
    const time::StepWork work = planned_work(model, setup, {}, 1);
    EXPECT_NEAR(work.model_flops / (make_report(model, setup).flops_per_token * 4096), 1, 1e-12) << preset;
  }
}

// Computing takes no time: the link is busy from the first gather to the last reduction with what a rank receives, to
// the byte, padding included.
TEST(PlanForecast, LinksCarryTheBytesOfThePlan) {
  const PlannedModel model = preset_model("smollm2-135m");
  const auto expect_bytes = [&](plan::Setup setup) {
    for (const char* precision : {"fp32", "bf16", "bf16_reduce"}) {
      for (const int64_t microbatches : {1, 2, 7}) {
        setup.precision = parse_planned_precision(precision);
        setup.work.microbatches = microbatches;
        SCOPED_TRACE(describe(setup));
        const auto received = static_cast<double>(make_report(model, setup).traffic.received_bytes);
        const Forecast result = forecast(model, setup, {}, made_up(kInstant, 1e9, kInstant));
        EXPECT_NEAR(result.step.step_ms / (1e3 * received / 1e9), 1, 1e-6);
      }
    }
  };
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams})
    expect_bytes(small_setup(1, 7, strategy));
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim})
    expect_bytes(small_setup(2, 4, strategy));
  plan::Setup grouped = small_setup(1, 8);
  grouped.reshard_after_forward = int64_t{2};
  expect_bytes(grouped);
  plan::Setup one_copy = small_setup(1, 4);  // of the gathered weights on a host: nothing is gathered
  one_copy.transport = Transport::kSharedMemory;
  one_copy.copies = GatheredCopies::kOnePerHost;
  expect_bytes(one_copy);
}

// Gathers, reductions and the optimizer's pass of the simulation are the plan's.
TEST(PlanForecast, TheOptimizerReadsAndWritesWhatRests) {
  const PlannedModel model = preset_model("smollm2-135m");
  const auto bytes_per_parameter = [&](const char* precision, Optimizer optimizer) {
    plan::Setup setup = small_setup(1, 1);
    setup.precision = parse_planned_precision(precision);
    setup.optimizer = optimizer;
    return planned_work(model, setup, {}, 1).optimizer_bytes / static_cast<double>(model.num_parameters());
  };
  EXPECT_NEAR(bytes_per_parameter("fp32", Optimizer::kAdamW), 28, 1e-3);
  EXPECT_NEAR(bytes_per_parameter("bf16", Optimizer::kAdamW), 30, 1e-3);
  EXPECT_NEAR(bytes_per_parameter("fp32", Optimizer::kSgd), 12, 1e-3);
  EXPECT_NEAR(bytes_per_parameter("bf16", Optimizer::kSgdMomentum), 22, 1e-3);
}

TEST(PlanForecast, MoreOfAResourceNeverCostsTime) {
  const PlannedModel model = preset_model("smollm2-135m");
  for (const int64_t shards : {8, 16, 64}) {
    const plan::Setup setup = small_setup(1, shards);
    const time::Hardware base = made_up(1e12, 1e9, 1e8);
    // What comes earlier may meet another transfer on the link and cost that a little, hence the allowance.
    const double now = forecast(model, setup, {}, base).seconds(), at_most = 1.001 * now;
    EXPECT_LE(forecast(model, setup, {}, made_up(2e12, 1e9, 1e8)).seconds(), at_most);
    EXPECT_LE(forecast(model, setup, {}, made_up(1e12, 2e9, 1e8)).seconds(), at_most);
    EXPECT_LE(forecast(model, setup, {}, made_up(1e12, 1e9, 2e8)).seconds(), at_most);
    plan::Setup deeper = setup;
    deeper.work.microbatches = 2;
    EXPECT_GT(forecast(model, deeper, {}, base).seconds(), now);
    plan::Setup again = setup;
    again.work.recompute = models::Recompute::kBlock;
    EXPECT_LE(now, 1.001 * forecast(model, again, {}, base).seconds());
  }
}

// Steps of many microbatches are not simulated to their end, but predicted as if they were.
TEST(PlanForecast, ManyMicrobatchesCountLikeAsMany) {
  const PlannedModel model = preset_model("smollm2-135m");
  const time::Hardware hardware = time::find_hardware("h100-sxm");
  for (const Strategy strategy :
       {Strategy::kOptim, Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim}) {
    plan::Setup setup = small_setup(2, 16, strategy);
    setup.precision = parse_planned_precision("bf16");
    setup.work.microbatches = 9;
    setup.work.sequence_length = 512;
    const time::StepTime whole = predict(planned_work(model, setup, {}, 9), hardware);
    const Forecast extended = forecast(model, setup, {}, hardware);
    SCOPED_TRACE(describe(setup));
    EXPECT_NEAR(extended.step.step_ms / whole.step_ms, 1, 1e-9);
    EXPECT_NEAR(extended.step.mfu / whole.mfu, 1, 1e-9);
    EXPECT_NEAR(extended.step.exposed_reduce_ms, whole.exposed_reduce_ms, 1e-6 * whole.step_ms);
    EXPECT_NEAR(extended.path.sum() / whole.step_ms, 1, 1e-6);
  }
}

TEST(PlanForecast, PartsAddUpToTheStep) {
  plan::Setup setup = small_setup(2, 64, Strategy::kHybrid);
  setup.precision = parse_planned_precision("bf16");
  setup.work.sequence_length = 2048;
  setup.work.microbatches = 3;
  const nlohmann::json json = to_json(
      forecast(preset_model("llama-3.1-8b"), setup, {}, time::find_hardware("h100-sxm")), HardwareOrigin::kGiven);
  double sum = 0;
  for (const char* part : {"compute_ms", "exposed_gather_ms", "exposed_reduce_ms", "optimizer_ms", "agreement_ms"})
    sum += json[part].get<double>();
  EXPECT_NEAR(sum, json["step_ms"], 1e-6);
  double exposed = 0;
  for (const auto& unit : json["units"]) exposed += unit["exposed_reduce_ms"].get<double>();
  EXPECT_NEAR(exposed, json["exposed_reduce_ms"], 1e-6);
  EXPECT_EQ(json["units"].size(), 33U);
  EXPECT_EQ(json["units"].back()["unit"], "root");
}

// Fewer cards than ranks share them; what crosses pods has the share of the thinner level.
TEST(PlanForecast, RailsAndPodsAreThatMuchThinner) {
  const PlannedModel model = preset_model("smollm2-135m");
  const plan::Setup setup = small_setup(1, 32);
  const time::Hardware hardware = made_up(kInstant, kInstant, 1e9);
  const double full = forecast(model, setup, {}, hardware).seconds();
  EXPECT_NEAR(forecast(model, setup, {.rails = 2}, hardware).seconds() / full, 4, 1e-3);
  // Two nodes in a pod: a ring enters it by one of them, so a quarter of the cards' bandwidth is half of what it needs.
  EXPECT_NEAR(forecast(model, setup, {.rails = 8, .pod_nodes = 2, .slimming = 4}, hardware).seconds() / full, 2, 1e-3);
  EXPECT_NEAR(forecast(model, setup, {.rails = 8, .pod_nodes = 4, .slimming = 4}, hardware).seconds() / full, 1, 1e-9);
  EXPECT_NEAR(forecast(model, setup, {.rails = 8, .pod_nodes = 2, .slimming = 2}, hardware).seconds() / full, 1, 1e-9);
}

TEST(PlanForecast, WhatCannotBePredictedSaysWhy) {
  const time::Hardware hardware = time::find_hardware("h100-sxm");
  const PlannedModel decoder = preset_model("smollm2-135m");
  EXPECT_FALSE(why_no_forecast(decoder, small_setup(1, 8), {}, hardware));
  const auto uneven = why_no_forecast(decoder, small_setup(1, 12), {}, hardware);
  ASSERT_TRUE(uneven);
  EXPECT_THAT(*uneven, HasSubstr("got 12 on nodes of 8, expected a multiple of it"));
  PlannedModel other = decoder;
  other.decoder.reset();
  EXPECT_THAT(why_no_forecast(other, small_setup(1, 8), {}, hardware).value_or(""), HasSubstr("is no decoder"));
  time::Hardware narrow = hardware;
  narrow.peak_flops.erase(time::Dtype::kFp32);
  EXPECT_EQ(why_no_forecast(decoder, small_setup(1, 8), {}, narrow).value_or(""),
            "'h100-sxm': got dtype fp32, expected one of bf16, fp8.");
}

TEST(PlanForecast, ARunTakesItsWholeSteps) {
  Forecast step;
  step.step.step_ms = 2000;
  step.world = 10;
  step.tokens_per_step = 1000;
  const RunLength length = run_length(step, 1'800'100);
  EXPECT_DOUBLE_EQ(length.steps, 1801);
  EXPECT_DOUBLE_EQ(length.hours, 1801 * 2.0 / 3600);
  EXPECT_DOUBLE_EQ(length.rank_hours, 18010 * 2.0 / 3600);
  EXPECT_NEAR(to_json(length, 0.5)["hours_with_failures"].get<double>(), 1801 * 4.0 / 3600, 1e-12);
}

TEST(PlanForecast, TimelinesGoByTheExtension) {
  const Forecast result = forecast(decoder_model("tiny", tiny_config()), small_setup(1, 4), {}, made_up(1e6, 1e6, 1e6));
  const std::string trace = timeline_text(result, timeline_format("a/step.json"), "");
  EXPECT_FALSE(nlohmann::json::parse(trace)["traceEvents"].empty());
  EXPECT_THAT(trace, HasSubstr("gather model.layers.1"));
  EXPECT_THAT(timeline_text(result, timeline_format("step.svg"), "<a> step"), HasSubstr("&lt;a&gt; step"));
  try {
    timeline_format("step.png");
    FAIL() << "a picture that nobody can draw";
  } catch (const io::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("got 'step.png', expected a name that ends in .json"));
  }
}

}  // namespace
}  // namespace fsdp::plan::forecast_test
