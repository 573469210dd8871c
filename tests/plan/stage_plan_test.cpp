// Plans of decoders whose layers are in stages (pp).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "io/base/error.h"
#include "models/config/presets.h"
#include "plan/forecast/forecast.h"
#include "plan/forecast/pipeline_time.h"
#include "plan/rank_part.h"
#include "plan/report.h"
#include "plan/search/limits.h"
#include "plan/search/search.h"
#include "plan/time/hardware.h"
#include "tests/plan/complaint.h"

namespace fsdp::plan::stage_plan_test {
namespace {

using ::testing::HasSubstr;

PlannedModel model_named(const std::string& preset) {
  return decoder_model(preset, models::find_preset(preset)->config);
}
PlannedModel model_70b() { return model_named("llama-3.1-70b"); }

Setup setup_of(int64_t stages, int64_t shards, int64_t tensor, int64_t microbatches) {
  plan::Setup setup;
  setup.pipeline = stages;
  setup.shards = shards;
  setup.tensor = tensor;
  setup.precision = parse_planned_precision("bf16");
  setup.strategy = Strategy::kOptimGrads;
  setup.work.sequence_length = 8192;
  setup.work.microbatches = microbatches;
  setup.work.recompute = models::Recompute::kBlock;
  return setup;
}

TEST(PlanStages, MakeUpTheModel) {
  for (const std::string preset : {"llama-3.1-8b", "llama-3.2-1b"}) {
    const PlannedModel model = model_named(preset);
    for (const int64_t stages : {1, 2, 3, 16}) {
      const Report report = make_report(model, setup_of(stages, 4, 1, 8));
      ASSERT_EQ(report.stages.size(), static_cast<size_t>(stages));
      int64_t parameters = 0, layer = 0;
      for (const StagePlan& stage : report.stages) {
        ASSERT_EQ(stage.layers.size(), 1u);
        EXPECT_EQ(stage.layers.front().first, layer);
        EXPECT_LE(stage.peak, report.memory.total());
        layer = stage.layers.front().last;
        parameters += stage.parameters;
      }
      EXPECT_EQ(layer, static_cast<int64_t>(model.blocks.size()));
      const bool is_twice = stages > 1 && model.head == TiedHead::kYes;
      const int64_t embedding = model.root.parameters.front().numel();
      EXPECT_EQ(parameters, model.num_parameters() + (is_twice ? embedding : 0)) << preset << stages;
      EXPECT_EQ(report.setup.tokens_per_step(), 4 * 8 * 8192);
      EXPECT_EQ(report.setup.world(), 4 * stages);
    }
  }
}

// Stage s of the model is on the rank s % pp.
TEST(PlanStages, SeveralOfARankMakeUpTheModelToo) {
  const PlannedModel model = model_70b();
  plan::Setup setup = setup_of(4, 2, 2, 8);
  setup.order = pipeline::Order::kInterleaved;
  setup.stages_per_rank = 5;
  const Report report = make_report(model, setup);
  int64_t parameters = 0, layer = 0;
  for (const StagePlan& place : report.stages) parameters += place.parameters;
  EXPECT_EQ(parameters, model.num_parameters());
  for (int64_t stage = 0; stage < 20; ++stage) {
    const models::BlockRange& layers = report.stages[static_cast<size_t>(stage % 4)].layers.at(stage / 4);
    EXPECT_EQ(layers.first, layer);
    layer = layers.last;
  }
  EXPECT_EQ(layer, 80);
  EXPECT_THAT(to_text(report), HasSubstr("4 x 5 stages (interleaved) of 1 x 2 ranks x tp 2"));
}

const Collective* messages(const Report& report) {
  for (const Collective& call : report.step.calls.collectives) {
    if (call.kind == CollectiveKind::kMessage) return &call;
  }
  return nullptr;
}

// Hidden states forwards, their gradients back: 8192 tokens of 8192 bf16 numbers, of which a rank along tp has a part.
TEST(PlanStages, HandOnHiddenStates) {
  for (const int64_t tensor : {1, 8}) {
    for (const int64_t stage : {0, 1, 3}) {
      const Report report = make_stage_report(model_70b(), setup_of(4, 2, tensor, 5), {}, stage);
      const Collective* call = messages(report);
      ASSERT_NE(call, nullptr);
      EXPECT_EQ(report.stage, stage);
      EXPECT_EQ(call->calls, stage == 1 ? 10 : 5);
      EXPECT_EQ(call->received_bytes, call->calls * 8192 * 8192 * 2 / tensor);
    }
  }
}

// docs/pipeline.md: v times the messages.
TEST(PlanStages, InterleavedOnesHandOnMore) {
  for (const int64_t place : {0, 1, 3}) {
    plan::Setup setup = setup_of(4, 2, 1, 8);
    setup.order = pipeline::Order::kInterleaved;
    setup.stages_per_rank = 3;
    const Report report = make_stage_report(model_70b(), setup, {}, place);
    EXPECT_EQ(messages(report)->calls, 8 * (2 * 3 - (place == 1 ? 0 : 1)));
    EXPECT_EQ(messages(report)->largest_shard, 8192 * 8192 * 2);
  }
}

// docs/pipeline.md: stage r keeps activations of p - r microbatches with 1f1b, of all with gpipe.
TEST(PlanStages, KeepWhatTheScheduleHasInFlight) {
  const auto activations = [](pipeline::Order order, int64_t stage, int64_t microbatches) {
    plan::Setup setup = setup_of(4, 2, 1, microbatches);
    setup.order = order;
    return make_stage_report(model_70b(), setup, {}, stage).memory[Part::kActivations];
  };
  const Activations one = plan_activations(model_70b(), setup_of(4, 2, 1, 1));
  const auto layers = stages_of(model_70b(), setup_of(4, 2, 1, 1))[1];
  const int64_t each = (layers.last - layers.first) * one.kept.front() + one.border_kept;
  for (const auto order : {pipeline::Order::k1F1B, pipeline::Order::kGPipe}) {
    const int64_t single = activations(order, 1, 1);
    for (const int64_t microbatches : {2, 3, 8, 20}) {
      const int64_t in_flight = order == pipeline::Order::kGPipe ? microbatches : std::min<int64_t>(3, microbatches);
      EXPECT_EQ(activations(order, 1, microbatches) - single, (in_flight - 1) * each) << microbatches;
    }
  }
}

// docs/pipeline.md: (2 (p - 1 - r) + (v - 1) p + 1) / v microbatches, each in v stages.
TEST(PlanStages, InterleavedOnesKeepMore) {
  constexpr int64_t kPlaces = 4, kStages = 2;
  for (const int64_t place : {1, 2}) {
    const auto activations = [&](int64_t microbatches) {
      plan::Setup setup = setup_of(kPlaces, 2, 1, microbatches);
      setup.order = pipeline::Order::kInterleaved;
      setup.stages_per_rank = kStages;
      return make_stage_report(model_70b(), setup, {}, place).memory[Part::kActivations];
    };
    plan::Setup alone = setup_of(kPlaces, 2, 1, 4);
    alone.stages_per_rank = kStages, alone.order = pipeline::Order::kInterleaved;
    const Activations one = plan_activations(model_70b(), alone);
    const auto layers = stages_of(model_70b(), alone)[static_cast<size_t>(place)];
    const int64_t each = (layers.last - layers.first) * one.kept.front() + one.border_kept;
    const int64_t in_flight = 2 * (kPlaces - 1 - place) + (kStages - 1) * kPlaces + 1;
    const int64_t a_layer_more = one.kept.front();  // of which stages have one more or less
    EXPECT_NEAR(activations(16), in_flight * each + one.working.front(), in_flight * a_layer_more / 2);
    EXPECT_EQ(activations(16), activations(40));
  }
}

// Rank r has forwards of p - r microbatches, and what the weights of r others wait for.
TEST(PlanStages, ZeroBubbleKeepsWhatWeightsNeed) {
  for (const int64_t place : {1, 2}) {
    const auto activations = [&](int64_t microbatches) {
      plan::Setup setup = setup_of(4, 2, 1, microbatches);
      setup.work.recompute = models::Recompute::kNone;
      setup.order = pipeline::Order::kZeroBubble;
      return make_stage_report(model_70b(), setup, {}, place).memory[Part::kActivations];
    };
    plan::Setup alone = setup_of(4, 2, 1, 1);
    alone.work.recompute = models::Recompute::kNone;
    const Activations one = plan_activations(model_70b(), alone);
    const auto layers = stages_of(model_70b(), alone)[static_cast<size_t>(place)];
    const int64_t count = layers.last - layers.first;
    const int64_t forward = count * one.kept.front() + one.border_kept, weights = count * one.kept_for_weights.front();
    EXPECT_EQ(activations(20) - activations(1), (3 - place) * forward + place * weights);
    EXPECT_EQ(activations(20), activations(8));
  }
}

// ZeRO-2 gathers weights once in a step, ZeRO-3 for each microbatch and pass.
TEST(PlanStages, GatherAsTheStrategySays) {
  const auto gathers = [](Strategy strategy, int64_t microbatches) {
    plan::Setup setup = setup_of(2, 4, 1, microbatches);
    setup.strategy = strategy;
    return make_stage_report(model_named("llama-3.1-8b"), setup, {}, 0).step.calls.gathers;
  };
  EXPECT_EQ(gathers(Strategy::kOptimGrads, 8), gathers(Strategy::kOptimGrads, 1));
  EXPECT_EQ(gathers(Strategy::kOptimGrads, 40), gathers(Strategy::kOptimGrads, 1));
  EXPECT_GT(gathers(Strategy::kOptimGradsParams, 8), 8 * gathers(Strategy::kOptimGrads, 1));
}

// Narayanan et al. 2021: m + p - 1 times a microbatch's forward and backward.
TEST(PlanStages, WaitAsTheFormulaSays) {
  for (const auto order : {pipeline::Order::k1F1B, pipeline::Order::kGPipe}) {
    for (const int ranks : {1, 2, 5}) {
      for (const int microbatches : {1, 4, 23}) {
        const std::vector<StageTime> stages(static_cast<size_t>(ranks), {1, 2});
        EXPECT_DOUBLE_EQ(pipeline_ms(order, {ranks, 1, microbatches}, stages, 0), 3.0 * (microbatches + ranks - 1));
      }
    }
  }
  EXPECT_DOUBLE_EQ(pipeline_ms(pipeline::Order::kGPipe, {2, 1, 1}, {{1, 2}, {1, 2}}, 0.5), 7);
  for (const int ranks : {2, 4}) {
    for (const int several : {2, 3}) {  // a v-th of the wait
      const std::vector<StageTime> stages(static_cast<size_t>(ranks * several), {1, 2});
      EXPECT_DOUBLE_EQ(pipeline_ms(pipeline::Order::kInterleaved, {ranks, several, 4 * ranks}, stages, 0),
                       3.0 * (several * 4 * ranks + ranks - 1));
    }
    const std::vector<StageTime> stages(static_cast<size_t>(ranks), {1, 2, 1});  // (p - 1)(f + b - 2 w)
    EXPECT_DOUBLE_EQ(pipeline_ms(pipeline::Order::kZeroBubble, {ranks, 1, 9}, stages, 0), 3.0 * 9 + ranks - 1);
  }
}

TEST(PlanStages, TimeHasTheBubble) {
  const time::Hardware hardware = time::find_hardware("h100-sxm");
  const auto share = [&](int64_t microbatches) {
    const Forecast step = forecast(model_70b(), setup_of(4, 2, 8, microbatches), Network{}, hardware);
    EXPECT_GT(step.step.mfu, 0.1);
    EXPECT_LT(step.step.mfu, 0.7);
    return step.stage_wait_ms / step.step.step_ms;
  };
  for (const int64_t microbatches : {4, 16, 64}) {
    const double theory = 3.0 / static_cast<double>(microbatches + 3);
    EXPECT_NEAR(share(microbatches), theory, 0.12 * theory) << microbatches;
  }
}

// Interleaved stages wait a v-th of the time, and zero bubble about a third.
TEST(PlanStages, OrdersThatWaitLessTakeLess) {
  const time::Hardware hardware = time::find_hardware("h100-sxm");
  const auto wait = [&](pipeline::Order order, int64_t stages_per_rank) {
    plan::Setup setup = setup_of(4, 2, 8, 16);
    setup.work.recompute = models::Recompute::kNone;
    setup.order = order;
    setup.stages_per_rank = stages_per_rank;
    return forecast(model_70b(), setup, Network{}, hardware).stage_wait_ms;
  };
  const double plain = wait(pipeline::Order::k1F1B, 1);
  EXPECT_NEAR(wait(pipeline::Order::kInterleaved, 2) / plain, 0.5, 0.15);
  EXPECT_NEAR(wait(pipeline::Order::kInterleaved, 5) / plain, 0.2, 0.1);
  // A third where gradients of weights take as long as the rest of a backward, and more where they take less.
  EXPECT_GT(wait(pipeline::Order::kZeroBubble, 1) / plain, 0.33);
  EXPECT_LT(wait(pipeline::Order::kZeroBubble, 1) / plain, 0.66);
}

TEST(PlanStages, ASearchKeepsThem) {
  SearchSpace space;
  space.base = setup_of(4, 4, 4, 8);
  space.memory = int64_t{80} << 30;
  space.precisions = {space.base.precision};
  predict_for(space, time::find_hardware("h100-sxm"));
  const SearchResult result = search(model_70b(), space);
  for (const auto* list : {&result.best, &result.losers}) {
    for (const Candidate& each : *list) {
      EXPECT_EQ(each.setup.pipeline, 4);
      EXPECT_EQ(each.setup.world(), 64);
    }
  }
}

// With 8 microbatches on 4 ranks a third of the time is waiting: orders that wait less win.
TEST(PlanStages, ASearchTriesOtherOrders) {
  SearchSpace space;
  space.base = setup_of(4, 4, 8, 8);
  space.memory = int64_t{640} << 30;
  space.precisions = {space.base.precision};
  predict_for(space, time::find_hardware("h100-sxm"));
  const SearchResult result = search(model_70b(), space);
  EXPECT_NE(result.best.front().setup.order, pipeline::Order::k1F1B) << describe(result.best.front().setup);
  const auto reasons = [&](pipeline::Order order) {
    std::vector<std::string> all;
    for (const Candidate& each : result.losers) {
      if (each.setup.order == order) all.push_back(each.reason);
    }
    return all;
  };
  for (const auto order : {pipeline::Order::k1F1B, pipeline::Order::kInterleaved, pipeline::Order::kZeroBubble}) {
    EXPECT_FALSE(reasons(order).empty());
    EXPECT_THAT(reasons(order), ::testing::Each(::testing::Not(::testing::IsEmpty())));
  }
  const Limits limits = find_limits(model_70b(), make_report(model_70b(), space.base, space.options), space);
  const bool has_order = std::any_of(limits.knobs.begin(), limits.knobs.end(),
                                     [](const Knob& knob) { return knob.lever == Lever::kStages; });
  EXPECT_TRUE(has_order) << to_text(limits, space);
}

TEST(PlanStages, ChangesThatHelpKeepThem) {
  SearchSpace space;
  space.base = setup_of(4, 4, 4, 8);
  predict_for(space, time::find_hardware("h100-sxm"));
  const Limits limits = find_limits(model_70b(), make_report(model_70b(), space.base, space.options), space);
  EXPECT_FALSE(limits.knobs.empty());
  for (const Knob& knob : limits.knobs) EXPECT_EQ(knob.setup.pipeline, 4) << knob.change;
}

TEST(PlanStages, MeshesNameThemAndNonsenseIsRefused) {
  const MeshShape mesh = parse_mesh("pp=4,tp=8", 128);
  EXPECT_EQ(mesh.pipeline, 4);
  EXPECT_EQ(mesh.shards, 4);
  try {
    make_report(model_70b(), setup_of(81, 1, 1, 1));
    FAIL() << "no complaint";
  } catch (const io::Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("[plan] pp: got 81 with 80 layers, expected a layer for each stage: at most 80"));
  }
  const auto refused = [](pipeline::Order order, int64_t stages_per_rank, int64_t microbatches) {
    plan::Setup setup = setup_of(4, 2, 1, microbatches);
    setup.order = order;
    setup.stages_per_rank = stages_per_rank;
    return complaint([&] { make_report(model_70b(), setup); });
  };
  EXPECT_THAT(refused(pipeline::Order::k1F1B, 2, 8),
              HasSubstr("stages per rank: got 2 with pp 4 and pipeline schedule"));
  EXPECT_THAT(refused(pipeline::Order::kInterleaved, 1, 8), HasSubstr("interleaved, expected 2 or more"));
  EXPECT_THAT(refused(pipeline::Order::kInterleaved, 2, 6),
              HasSubstr("got interleaved with 6 microbatches, expected a"));
  EXPECT_THAT(refused(pipeline::Order::kInterleaved, 21, 8), HasSubstr("pp: got 4 x 21 stages with 80 layers"));
  EXPECT_THAT(refused(pipeline::Order::kZeroBubble, 1, 8), HasSubstr("got zero_bubble with recompute block"));
  EXPECT_THAT(to_text(make_report(model_70b(), setup_of(4, 2, 8, 8))), HasSubstr("what follows is about this one"));
}

}  // namespace
}  // namespace fsdp::plan::stage_plan_test
