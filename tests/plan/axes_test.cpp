// Plans of decoders whose layers (tp) and sequences (cp) are cut over ranks.
#include "plan/axes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/config/presets.h"
#include "plan/forecast/forecast.h"
#include "plan/forecast/planned_work.h"
#include "plan/report.h"
#include "plan/search/search.h"
#include "plan/time/hardware.h"
#include "tests/plan/complaint.h"

namespace fsdp::plan::axes_test {
namespace {

using ::testing::HasSubstr;

const models::DecoderConfig& llama_70b() { return models::find_preset("llama-3.1-70b")->config; }
PlannedModel model_70b() { return decoder_model("70b", llama_70b()); }

Setup setup_of(int64_t shards, int64_t context, int64_t tensor) {
  plan::Setup setup;
  setup.shards = shards;
  setup.context = context;
  setup.tensor = tensor;
  setup.precision = parse_planned_precision("bf16");
  setup.work.sequence_length = 8192;
  setup.work.recompute = models::Recompute::kBlock;
  return setup;
}

const TrafficLine* find_line(const Report& report, CollectiveKind kind, CollectiveAxis axis) {
  for (const TrafficLine& line : report.traffic.lines) {
    if (line.call.kind == kind && line.call.axis == axis && line.call.load == CollectiveLoad::kActivations)
      return &line;
  }
  return nullptr;
}

// Norms, which every rank has, are all that the parts have twice.
TEST(PlanAxes, PartsMakeUpTheModel) {
  const models::DecoderConfig& config = llama_70b();
  const int64_t norms = (2 * config.num_hidden_layers + 1) * config.hidden_size;
  for (const int64_t tensor : {1, 2, 4, 8}) {
    const PlannedModel part = part_of_rank(model_70b(), tensor);
    EXPECT_EQ(tensor * part.num_parameters(), model_70b().num_parameters() + (tensor - 1) * norms);
  }
}

// Where ranks are more than heads of keys and values, each head's maps are on several of them.
TEST(PlanAxes, FewHeadsOfKeysAndValuesAreOnSeveralRanks) {
  const models::DecoderConfig& config = llama_70b();
  const int64_t norms = (2 * config.num_hidden_layers + 1) * config.hidden_size;
  const int64_t keys = 2 * config.num_hidden_layers * config.hidden_size * config.num_key_value_heads * config.head_dim;
  for (const int64_t tensor : {16, 64}) {
    const PlannedModel part = part_of_rank(model_70b(), tensor);
    EXPECT_EQ(part.decoder->num_key_value_heads, 1);
    EXPECT_EQ(tensor * part.num_parameters(),
              model_70b().num_parameters() + (tensor - 1) * norms + (tensor / config.num_key_value_heads - 1) * keys);
  }
}

// Adapters lie where their map is cut: B with rows of outputs, A with columns of inputs, the other one whole.
TEST(PlanAxes, AdaptersAreCutWithTheirMaps) {
  const auto shapes = [](const char* map) {
    PlannedModel model = model_70b();
    model.blocks = {{"model.layers.0",
                     {{std::string("self_attn.") + map + ".lora_A.weight", {16, 8192}},
                      {std::string("self_attn.") + map + ".lora_B.weight", {8192, 16}}}}};
    const std::vector<PlannedParameter> parts = part_of_rank(model, 4).blocks.front().parameters;
    return std::vector<std::vector<int64_t>>{parts[0].shape, parts[1].shape};
  };
  EXPECT_EQ(shapes("q_proj"), (std::vector<std::vector<int64_t>>{{16, 8192}, {2048, 16}}));
  EXPECT_EQ(shapes("o_proj"), (std::vector<std::vector<int64_t>>{{16, 2048}, {8192, 16}}));
}

// 16 bytes a parameter (fp32 weight, gradient, two moments) over all ranks, but for norms and padding.
TEST(PlanAxes, StateIsSharedByAllRanks) {
  const double whole = 16.0 * static_cast<double>(model_70b().num_parameters()) / 128;
  for (const auto& setup : {setup_of(128, 1, 1), setup_of(16, 1, 8), setup_of(32, 4, 4)}) {
    const Report report = make_report(model_70b(), setup);
    const auto state = static_cast<double>(report.memory[Part::kMainWeight] + report.memory[Part::kMainGrad] +
                                           report.memory[Part::kOptimizer]);
    EXPECT_NEAR(state / whole, 1, 2e-3) << describe(setup);
    EXPECT_EQ(report.parameters, model_70b().num_parameters());
  }
}

// docs/parallelism.md: 8 (N-1)/N of a hidden state for each layer and microbatch, half as much again where blocks are
// computed twice, and 4 (N-1)/N for embedding and head.
TEST(PlanAxes, TensorRanksReceiveWhatTheFormulaSays) {
  const models::DecoderConfig& config = llama_70b();
  for (const int64_t tensor : {2, 8}) {
    for (const auto recompute : {models::Recompute::kNone, models::Recompute::kBlock}) {
      plan::Setup setup = setup_of(8, 1, tensor);
      setup.work.recompute = recompute;
      setup.work.microbatches = 3;
      const Report report = make_report(model_70b(), setup);
      const auto* gather = find_line(report, CollectiveKind::kGather, CollectiveAxis::kTensor);
      const auto* scatter = find_line(report, CollectiveKind::kReduceScatter, CollectiveAxis::kTensor);
      ASSERT_TRUE(gather != nullptr && scatter != nullptr);
      const int64_t hidden_state = 8192 * config.hidden_size * 2;
      const int64_t of_layer = recompute == models::Recompute::kBlock ? 12 : 8;
      const int64_t times = 3 * (config.num_hidden_layers * of_layer + 4);
      EXPECT_EQ(gather->call.received_bytes + scatter->call.received_bytes,
                times * hidden_state / tensor * (tensor - 1));
      EXPECT_EQ(gather->between_nodes, 0);
    }
  }
}

TEST(PlanAxes, ContextRanksReceiveTheKeysOfTheOthers) {
  const models::DecoderConfig& config = llama_70b();
  plan::Setup setup = setup_of(16, 4, 1);
  setup.work.recompute = models::Recompute::kNone;
  const Report report = make_report(model_70b(), setup);
  const int64_t own = 8192 / 4 * 2 * config.num_key_value_heads * config.head_dim * 2;
  for (const auto kind : {CollectiveKind::kGather, CollectiveKind::kReduceScatter}) {
    const auto* line = find_line(report, kind, CollectiveAxis::kContext);
    ASSERT_NE(line, nullptr);
    EXPECT_EQ(line->call.received_bytes, config.num_hidden_layers * 3 * own);
  }
}

// docs/parallelism.md: (N-1) S in a forward, as much in a backward, and gradients in fp32; no copy of others' keys.
TEST(PlanAxes, ARingPassesBlocks) {
  const models::DecoderConfig& config = llama_70b();
  plan::Setup setup = setup_of(16, 4, 1);
  setup.work.recompute = models::Recompute::kNone;
  const Report gathered = make_report(model_70b(), setup);
  EXPECT_EQ(find_line(gathered, CollectiveKind::kMessage, CollectiveAxis::kContext), nullptr);
  setup.context_exchange = parallel::ContextExchange::kRing;
  const Report ring = make_report(model_70b(), setup);
  const auto* line = find_line(ring, CollectiveKind::kMessage, CollectiveAxis::kContext);
  ASSERT_NE(line, nullptr);
  const int64_t own = 8192 / 4 * 2 * config.num_key_value_heads * config.head_dim * 2;
  EXPECT_EQ(line->call.received_bytes, config.num_hidden_layers * 3 * (own + own + 2 * own));
  EXPECT_EQ(line->call.calls, config.num_hidden_layers * 3 * 3);
  EXPECT_EQ(line->between_nodes, 0);
  EXPECT_LT(ring.memory[Part::kActivations], gathered.memory[Part::kActivations]);
  setup.node_size = 2;  // half of a node's ranks get what comes from others
  const Report far = make_report(model_70b(), setup);
  EXPECT_EQ(find_line(far, CollectiveKind::kMessage, CollectiveAxis::kContext)->between_nodes,
            line->call.received_bytes / 2);
}

// Where keys, values and mask of all ranks pass 256 MiB, as the runtime decides.
TEST(PlanAxes, LongSequencesTakeTheRing) {
  for (const int64_t tokens : {8192, 131072}) {
    plan::Setup setup = setup_of(16, 4, 1);
    setup.work.sequence_length = tokens;
    const Report report = make_report(model_70b(), setup);
    const bool is_ring = find_line(report, CollectiveKind::kMessage, CollectiveAxis::kContext) != nullptr;
    EXPECT_EQ(is_ring, tokens > 8192);
    EXPECT_THAT(to_text(report), HasSubstr(is_ring ? "receive activations over cp" : "gather activations over cp"));
  }
}

// The ring hides what it receives behind attention.
TEST(PlanAxes, TimeOfARingIsHidden) {
  const time::Hardware hardware = time::find_hardware("h100-sxm");
  plan::Setup setup = setup_of(16, 4, 1);
  setup.work.sequence_length = 65536;
  setup.context_exchange = parallel::ContextExchange::kGather;
  const Forecast gathered = forecast(model_70b(), setup, Network{}, hardware);
  setup.context_exchange = parallel::ContextExchange::kRing;
  const Forecast ring = forecast(model_70b(), setup, Network{}, hardware);
  EXPECT_GT(gathered.step.activation_ms, 0);
  EXPECT_LT(ring.step.activation_ms, 0.1 * gathered.step.activation_ms);
}

TEST(PlanAxes, RanksThatShareSequencesAreNoMoreTokens) {
  EXPECT_EQ(setup_of(16, 1, 8).tokens_per_step(), 16 * 8192);
  EXPECT_EQ(setup_of(16, 4, 8).tokens_per_step(), 4 * 8192);
  EXPECT_EQ(setup_of(16, 4, 8).world(), 128);
}

TEST(PlanAxes, BothCutActivations) {
  const auto activations = [](const plan::Setup& setup) {
    const Report report = make_report(model_70b(), setup);
    return static_cast<double>(report.memory[Part::kActivations] + report.memory[Part::kLoss]);
  };
  const double whole = activations(setup_of(128, 1, 1));
  EXPECT_LT(activations(setup_of(16, 1, 8)), whole / 3);
  EXPECT_LT(activations(setup_of(128, 4, 1)), whole / 2);
}

TEST(PlanAxes, MeshesNameTheirAxes) {
  const MeshShape mesh = parse_mesh("replicate=2,cp=2,tp=8", 128);
  EXPECT_EQ(mesh.shards, 4);
  plan::Setup setup;
  mesh.apply_to(setup);
  EXPECT_EQ(setup.world(), 128);
  EXPECT_EQ(setup.shards, 8);
  EXPECT_EQ(parse_mesh("replicate=8,shard=2,tp=8", 0).replicas, 8);
}

// On as many ranks, with as many tokens a step: layers that are cut compute as much, in smaller products, and wait for
// activations.
TEST(PlanAxes, TimeCountsTransfersThatLayersWaitFor) {
  const time::Hardware hardware = time::find_hardware("h100-sxm");
  plan::Setup flat = setup_of(64, 1, 1), cut = setup_of(8, 1, 8);
  cut.work.microbatches = 8;
  const Forecast one = forecast(model_70b(), flat, Network{}, hardware);
  const Forecast other = forecast(model_70b(), cut, Network{}, hardware);
  EXPECT_EQ(one.tokens_per_step, other.tokens_per_step);
  EXPECT_EQ(one.step.activation_ms, 0);
  EXPECT_GT(other.step.activation_ms, 0);
  const double ratio = (other.step.compute_ms - other.step.activation_ms) / one.step.compute_ms;
  EXPECT_GT(ratio, 1);
  EXPECT_LT(ratio, 1.4);
  plan::Setup far = cut;
  far.node_size = 4;  // tp over two nodes
  EXPECT_GT(forecast(model_70b(), far, Network{.rails = 4}, hardware).step.activation_ms, 2 * other.step.activation_ms);
  EXPECT_THAT(to_text(make_report(model_70b(), far)), HasSubstr("Take a tp of at most 4."));
}

TEST(PlanAxes, ASearchKeepsTheAxes) {
  SearchSpace space;
  space.base = setup_of(16, 2, 4);
  space.base.work.microbatches = 4;
  space.memory = int64_t{80} << 30;
  space.precisions = {space.base.precision};
  const SearchResult result = search(model_70b(), space);
  for (const auto* list : {&result.best, &result.losers}) {
    for (const Candidate& each : *list) {
      EXPECT_EQ(each.setup.world(), 64);
      EXPECT_EQ(each.setup.tensor, 4);
      EXPECT_EQ(each.setup.shards % 2, 0);
    }
  }
}

TEST(PlanAxes, WhatDoesNotDivideIsRefused) {
  const auto refused = [](const plan::Setup& setup) { return complaint([&] { make_report(model_70b(), setup); }); };
  EXPECT_THAT(refused(setup_of(16, 1, 3)),
              HasSubstr("[plan] tp: got 3 with 64 attention heads, expected one of 1, 2, 4, 8"));
  EXPECT_THAT(refused(setup_of(16, 1, 24)), HasSubstr("tp: got 24 with 64 attention heads, expected one of 1, 2, 4, 8, "
                                                      "16, 32, 64."));
  EXPECT_THAT(refused(setup_of(6, 3, 1)), HasSubstr("[plan] cp: got 3 with 4096 tokens"));
  EXPECT_THAT(refused(setup_of(6, 4, 1)), HasSubstr("[plan] cp: got 4 in shard groups of 6 ranks"));
  plan::Setup setup = setup_of(16, 1, 8);
  setup.work.recompute = models::Recompute::kGateUp;
  EXPECT_THAT(refused(setup), HasSubstr("got it with recompute gate_up"));
  setup = setup_of(16, 1, 8);
  setup.optimizer = Optimizer::kMuon;
  EXPECT_THAT(refused(setup), HasSubstr("got it with optimizer muon"));
}

}  // namespace
}  // namespace fsdp::plan::axes_test
