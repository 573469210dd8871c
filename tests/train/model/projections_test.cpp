// Fused QKV and gate+up: numbers of separate products, one product each, and no memory more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "fsdp/comm/connection.h"
#include "tests/kernels/calls_of.h"
#include "tests/train/model/held_bytes.h"
#include "tests/train/model/model_files.h"
#include "tests/train/model/tuning_run.h"

namespace fsdp::train {
namespace {

using kernels::CallsOf;
using testing::ids_of;
using testing::run_ranks;
using testing::TuningPlan;
using testing::TuningRun;

TuningPlan fused_plan() {
  TuningPlan plan;
  plan.projections = "fused";
  return plan;
}

ShardedModel alone(const models::DecoderConfig& config) {
  models::Decoder decoder(config);
  decoder->reset_parameters(3);
  return parallelize(std::move(decoder), Mesh::shard(comm::connect_alone()), {});
}

// With weights gathered in fp32 and in bf16, resharded after the forward or kept.
TEST(FusedProjections, TrainLikeSeparateOnesOnAnyNumberOfRanks) {
  const int64_t layers = testing::load_base()->config().num_hidden_layers;
  for (const std::string strategy : {"optim_grads_params", "optim_grads"}) {
    for (const std::string precision : {"fp32", "bf16"}) {
      for (const int ranks : {1, 2, 4}) {
        run_ranks(ranks, [&](const World& world) {
          SCOPED_TRACE(c10::str("rank ", world.rank, " of ", ranks, ", ", strategy, ", ", precision));
          TuningPlan plan, fused = fused_plan();
          for (TuningPlan* each : {&plan, &fused}) {
            each->shard.strategy = strategy;
            each->shard.precision = precision;
          }
          TuningRun expected(world, plan), run(world, fused);
          Unit root = run.model().root;  // counts what both do, as all units of a world
          const double tolerance = precision == "bf16" ? 3e-3 : 3e-6;
          for (int step = 0; step < testing::kTuningSteps; ++step) {
            root.reset_counters();
            const double loss = expected.step();
            const Counters separate = root.counters();
            root.reset_counters();
            const CallsOf calls("fsdp::fused_linear");
            EXPECT_NEAR(run.step(), loss, tolerance * loss) << step;
            EXPECT_EQ(root.counters().gathers, separate.gathers) << step;
            EXPECT_EQ(root.counters().gradients_in_place, separate.gradients_in_place) << step;
            EXPECT_GT(separate.gradients_in_place, 0) << step;
            EXPECT_EQ(calls.count() % (2 * layers), 0);
            EXPECT_GT(calls.count(), 0);
          }
        });
      }
    }
  }
}

TEST(FusedProjections, RecomputationChangesNoBit) {
  for (const std::string precision : {"fp32", "bf16"}) {
    std::vector<double> expected;
    for (const Recompute what : {Recompute::kNone, Recompute::kElementwise, Recompute::kGateUp, Recompute::kBlock}) {
      run_ranks(1, [&](const World& world) {
        TuningPlan plan = fused_plan();
        plan.shard.precision = precision;
        plan.recomputation = {what};
        TuningRun run(world, plan);
        std::vector<double> losses;
        for (int step = 0; step < testing::kTuningSteps; ++step) losses.push_back(run.step());
        if (expected.empty()) expected = losses;
        EXPECT_EQ(losses, expected) << precision << " " << static_cast<int>(what);
      });
    }
  }
}

// Rotated in place: the product that q, k and v are columns of is what attention reads.
TEST(FusedProjections, KeepNoMoreThanSeparateOnes) {
  for (const bool qk_norm : {false, true}) {
    for (const Recompute what : {Recompute::kNone, Recompute::kElementwise, Recompute::kGateUp}) {
      const auto held = [&](int64_t layers, int64_t length) {
        models::DecoderConfig config = small_config();
        config.num_hidden_layers = layers;
        config.has_qk_norm = qk_norm;
        models::Decoder decoder(config);
        decoder->reset_parameters(3);
        set_recomputation(decoder, {what});
        ShardedModel model = parallelize(std::move(decoder), Mesh::shard(comm::connect_alone()), {});
        set_projections(model, "fused");
        return testing::bytes_of_graph(model.decoder, ids_of(2, length));
      };
      models::DecoderConfig config = small_config();
      config.has_qk_norm = qk_norm;
      const int64_t of_blocks = held(5, 512) - held(1, 512) - held(5, 256) + held(1, 256);
      EXPECT_EQ(of_blocks, 4 * 512 * kept_bytes_per_token(config, what, 4)) << qk_norm << " " << static_cast<int>(what);
    }
  }
}

// Biases lie between q, k and v, which then take a product each.
TEST(FusedProjections, OfMapsWithBiases) {
  models::DecoderConfig config = small_config();
  config.attention_bias = models::AttentionBias::kInputs;
  ShardedModel model = alone(config);
  const at::Tensor ids = ids_of(2, 8), expected = model.decoder->forward(ids);
  set_projections(model, "fused");
  const CallsOf calls("fsdp::fused_linear");
  const at::Tensor logits = model.decoder->forward(ids);
  EXPECT_EQ(calls.count(), config.num_hidden_layers);
  EXPECT_LE((logits - expected).abs().max().item<double>(), 1e-4);
}

TEST(FusedProjections, OfWeightsThatLieApartAreRefused) {
  models::DecoderConfig config = small_config();
  config.hidden_size = 5;
  config.intermediate_size = 3;
  config.num_attention_heads = config.num_key_value_heads = 1;
  config.head_dim = 2;
  ShardedModel model = alone(config);
  set_projections(model, "separate");
  try {
    set_projections(model, "fused");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("train.projections: got fused"));
  }
}

}  // namespace
}  // namespace fsdp::train
