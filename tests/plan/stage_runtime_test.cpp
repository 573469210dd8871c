// Plans of ranks along pp against runs: decoders in stages, in every order, and the runtime's own account.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/fsdp.h"
#include "fsdp/pipeline/split_backward.h"
#include "models/decoder.h"
#include "plan/rank_part.h"
#include "plan/report.h"
#include "tests/plan/runtime_counts.h"
#include "tests/plan/small_decoder.h"
#include "tests/support/ranks.h"
#include "tests/train/model/held_bytes.h"
#include "train/axes/decoder_pipeline.h"
#include "train/model/parallelize.h"

namespace fsdp::plan::stage_runtime_test {
namespace {

using testing::HeldBytes;
using testing::run_ranks;

constexpr int64_t kRows = 2, kTokens = 6;

struct Case {
  pipeline::Order order;
  int pp, stages_per_rank, shards, microbatches;
  Strategy strategy;
  const char* precision = "fp32";
  bool tied = false;
  int replicas = 1;
};

Setup setup_of(const Case& c) {
  Setup setup;
  setup.pipeline = c.pp;
  setup.stages_per_rank = c.stages_per_rank;
  setup.order = c.order;
  setup.shards = c.shards;
  setup.replicas = c.replicas;
  setup.strategy = c.strategy;
  setup.precision = parse_planned_precision(c.precision);
  setup.transport = Transport::kGloo;
  setup.node_size = setup.world();
  setup.work.microbatches = c.microbatches;
  setup.work.microbatch_sequences = kRows;
  setup.work.sequence_length = kTokens;
  return setup;
}

void train_and_compare(const World& world, const models::DecoderConfig& config, const Setup& setup) {
  const Mesh mesh(world, {{"pp", static_cast<int>(setup.pipeline)},
                          {"replicate", static_cast<int>(setup.replicas)},
                          {"shard", static_cast<int>(setup.shards)}});
  const int place = mesh.index("pp");
  const Report plan = make_stage_report(decoder_model("small", config), setup, {}, place);
  const auto stages = models::cut_into_stages(config, kTokens, setup.num_stages());
  models::Decoder decoder(config);
  decoder->keep_blocks(models::stages_of_rank(stages, place, static_cast<int>(setup.pipeline)));
  decoder->reset_parameters(7);
  ShardOptions options;
  options.strategy = setup.strategy;
  if (setup.precision != parse_planned_precision("fp32")) options.precision = Precision::bf16();
  train::ShardedModel model = train::parallelize(std::move(decoder), mesh, options, std::nullopt);
  train::DecoderPipeline pipeline(mesh, model.decoder, model.root, stages, setup.order);
  AdamW optimizer(parameters(*model.decoder), {});
  const at::Tensor ids = at::arange(kRows * kTokens, at::kLong).view({kRows, kTokens}) % 67;
  const at::Tensor targets = models::shift_labels(ids).flatten();
  const std::vector<train::StageInput> inputs(static_cast<size_t>(setup.work.microbatches), {ids, {}});
  for (int step = 0; step < 3; ++step) {
    model.root.reset_counters();
    pipeline.step(inputs, {}, [&](const at::Tensor& hidden, int) { return model.decoder->loss_of(hidden, targets); });
    optimizer.step();
    zero_grad(*model.decoder);
  }
  expect_rest(plan, model.root.resting_bytes());
  EXPECT_EQ(plan.memory[Part::kOptimizer], optimizer.state_bytes());
  expect_counts(plan, model.root.counters());
  const MemoryCategories memory = model.root.memory();
  EXPECT_EQ(plan.step.held_bytes, memory.gathered + memory.reduce + memory.idle);
}

// All strategies in every order: what rests, what is gathered and reduced, peaks of both, and buffers.
TEST(PlanOfStages, IsTheRunToTheByte) {
  using pipeline::Order;
  constexpr Strategy kAll[] = {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads,
                               Strategy::kOptimGradsParams};
  std::vector<Case> cases;
  for (const Strategy strategy : kAll) {
    cases.push_back({Order::k1F1B, 2, 1, 2, 5, strategy});
    cases.push_back({Order::kInterleaved, 2, 2, 2, 6, strategy});
    cases.push_back({Order::kZeroBubble, 2, 1, 2, 5, strategy});
  }
  for (const Strategy strategy : {Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    cases.push_back({Order::kGPipe, 2, 1, 2, 3, strategy, "bf16"});
    cases.push_back({Order::kInterleaved, 2, 3, 1, 12, strategy, "bf16", true});
    cases.push_back({Order::kZeroBubble, 3, 1, 1, 12, strategy, "bf16", true});
  }
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim}) {
    cases.push_back({Order::kInterleaved, 2, 2, 1, 4, strategy, "fp32", false, 2});
    cases.push_back({Order::kZeroBubble, 2, 1, 1, 4, strategy, "bf16", false, 2});
  }
  for (const Case& c : cases) {
    const plan::Setup setup = setup_of(c);
    const models::DecoderConfig config = small_decoder(12, c.tied, /*biases=*/false);
    run_ranks(static_cast<int>(setup.world()), [&](const World& world) {
      SCOPED_TRACE(describe(setup) + ", rank " + std::to_string(world.rank));
      train_and_compare(world, config, setup);
    });
  }
}

// What blocks keep between the parts of a split backward, by LibTorch's account.
TEST(PlanOfStages, ASplitBackwardKeepsWhatWeightsNeed) {
  for (const char* family : {"llama", "qwen3"}) {
    models::DecoderConfig config = models::family_config(family);
    config.vocab_size = 64;
    config.hidden_size = 128;
    config.intermediate_size = 384;
    config.num_hidden_layers = 6;
    config.num_attention_heads = 4;
    config.num_key_value_heads = 2;
    config.head_dim = 32;
    plan::Setup setup;
    setup.precision = parse_planned_precision("fp32");
    setup.work.microbatch_sequences = 2;
    setup.work.sequence_length = 256;
    const Activations planned = plan_activations(decoder_model(family, config), setup);
    models::Decoder decoder(config);
    decoder->reset_parameters(3);
    const at::Tensor ids = at::zeros({2, 256}, at::kLong);
    const at::Tensor input = at::randn({2, 256, 128}).requires_grad_();
    const auto account = std::make_shared<HeldBytes>();
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, account);
    pipeline::InputPart part;
    {
      const at::Tensor x = input * 1;
      const at::Tensor output = decoder->run_stage({1, 5}, x, ids);
      part = pipeline::run_input_part(output, at::ones_like(output.detach()), input);
    }
    part.gradient.reset();
    const auto measured = static_cast<double>(account->held());
    const auto expected = static_cast<double>(4 * planned.kept_for_weights[1]);
    EXPECT_NEAR(expected / measured, 1, 0.03) << family;
    pipeline::run_weights_part(part.rest);
  }
}

}  // namespace
}  // namespace fsdp::plan::stage_runtime_test
