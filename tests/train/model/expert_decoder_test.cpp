// A decoder whose experts are spread over "ep" as `fsdp train` spreads them has what transformers computes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/fsdp.h"
#include "io/hub/model_folder.h"
#include "tests/io/temporary_folder.h"
#include "tests/models/golden.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"
#include "train/axes/axis_checks.h"
#include "train/data/batch.h"
#include "train/model/build_model.h"
#include "train/model/replica_check.h"
#include "train/model/weights.h"

namespace fsdp::expert_decoder_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_close;
using ::testing::HasSubstr;
using testing::run_ranks;
using ::testing::ThrowsMessage;

struct Layout {
  int ranks;
  int64_t ep;
  int64_t replicas = 1;
  std::string strategy = "optim_grads_params";
  std::string recompute = "none";
};

train::Config config_of(const Layout& layout) {
  train::Config config;
  config.mesh.ep = layout.ep;
  config.shard.replicas = layout.replicas;
  config.shard.strategy = layout.strategy;
  config.train.recompute = layout.recompute;
  return config;
}

std::vector<fs::path> folders() {
  const fs::path models = fs::path(FSDP_TEST_DATA_DIR) / "models";
  return {models / "mixtral-mini", models / "qwen3moe-mini", models / "deepseek2-mini",
          models / "deepseek2-query-mini"};
}

void expect_gradients(train::ShardedModel& model, const models::Tensors& expected) {
  const StateDict gradients = full_gradients(*model.decoder);
  size_t compared = 0;
  for (const auto& [name, gradient] : gradients.tensors) {
    const auto golden = expected.find("grad." + name);
    if (golden == expected.end()) continue;
    EXPECT_LE(models::largest_difference(gradient, golden->second), 1e-5) << name;
    ++compared;
  }
  EXPECT_GE(compared, 3u);
}

// Each rank has the golden batch: the mean over all of them is that of one.
void expect_golden_step(const World& world, const Layout& layout, const fs::path& folder) {
  const models::DecoderConfig config = models::read_decoder_config(folder);
  train::ShardedModel model =
      train::build_model({config, io::ModelFolder::open(folder)}, {}, config_of(layout), world, at::kCPU);
  EXPECT_EQ(train::num_parameters(model), models::num_parameters(config));
  const auto expected = models::read_tensors(folder / "expected.safetensors");
  const at::Tensor ids = expected.at("input_ids"), targets = models::shift_labels(expected.at("labels")).flatten();
  const auto num_targets = targets.ne(train::kNoTarget).sum().item<double>() * world.size;
  const auto loss_now = [&] {
    zero_grad(*model.decoder);
    return model.decoder->loss(ids, targets, {}, kernels::Reduction::kSum) / num_targets;
  };
  const at::Tensor plain = loss_now();
  plain.backward();
  expect_close(sum_over_ranks(world, plain.detach()), expected.at("loss"), 1e-5, "loss");
  expect_gradients(model, expected);

  const at::Tensor loss = loss_now();
  const at::Tensor balance = model.decoder->balance_loss();
  (loss + config.experts.balance_loss * balance).backward();
  if (fs::exists(folder / "balanced.safetensors")) {  // transformers' DeepSeek-V2 has no such loss
    const auto balanced = models::read_tensors(folder / "balanced.safetensors");
    expect_close(sum_over_ranks(world, balance.detach()), balanced.at("aux_loss"), 1e-5, "balancing loss");
    expect_gradients(model, balanced);
  }
  EXPECT_EQ(model.decoder->expert_counts()[0].sum().item<double>(),
            static_cast<double>(ids.numel() * config.experts.per_token * world.size));

  const at::NoGradGuard no_grad;
  EXPECT_LE(models::largest_difference(model.decoder->forward(ids), expected.at("logits")), 1e-5);
  train::compare_replicas(world, model, 1);
}

TEST(ExpertDecoder, LossesLogitsAndGradientsAreThoseOfTransformers) {
  const Layout layouts[] = {{1, 1},
                            {2, 1},
                            {2, 2},
                            {4, 4},
                            {8, 8},
                            {4, 2, 1, "optim_grads_params", "block"},
                            {4, 2, 2, "hybrid"},
                            {4, 2, 1, "no_shard"},
                            {4, 2, 1, "optim_grads", "elementwise"}};
  for (const fs::path& folder : folders()) {
    const int64_t experts = models::read_decoder_config(folder).experts.count;
    for (const Layout& layout : layouts) {
      if (experts % layout.ep != 0) continue;
      SCOPED_TRACE(c10::str(folder.filename().string(), ", ", layout.ranks, " ranks, ep ", layout.ep, ", ",
                            layout.strategy, ", recompute ", layout.recompute));
      run_ranks(layout.ranks, [&](const World& world) { expect_golden_step(world, layout, folder); });
    }
  }
}

// Drawn whole and spread, read and written: the bits of the whole model, under the names of the file that was read.
TEST(ExpertDecoder, StartsFromAndWritesTheWholeModel) {
  for (const fs::path& source : folders()) {
    const models::DecoderConfig config = models::read_decoder_config(source);
    models::Decoder drawn(config);
    drawn->reset_parameters(1);
    for (const auto& [ranks, ep, precision] :
         {std::tuple{1, 1, "fp32"}, {4, 2, "fp32"}, {4, 4, "bf16"}, {2, 1, "bf16"}}) {
      if (config.experts.count % ep != 0) continue;
      SCOPED_TRACE(c10::str(source.filename().string(), ", ", ranks, " ranks, ep ", ep, ", ", precision));
      const io::TemporaryFolder folder;
      run_ranks(ranks, [&, ranks = ranks, ep = ep, precision = precision](const World& world) {
        train::Config run = config_of({ranks, ep});
        run.shard.precision = precision;
        train::ShardedModel random = train::build_model({config, {}}, {}, run, world, at::kCPU);
        const StateDict weights = full_state_dict(*random.decoder);
        for (const auto& item : drawn->named_parameters())
          EXPECT_TRUE(at::equal(weights.tensors.at(item.key()), item.value().detach())) << item.key();
        train::ShardedModel model =
            train::build_model({config, io::ModelFolder::open(source)}, {}, run, world, at::kCPU);
        train::save_model(model, world, folder / "saved", "none");
      });
      const auto before = models::read_tensors(source / "model.safetensors"),
                 after = models::read_tensors(folder / "saved/model.safetensors");
      EXPECT_EQ(before.size(), after.size());
      for (const auto& [name, value] : before) EXPECT_TRUE(at::equal(after.at(name), value)) << name;
      EXPECT_EQ(models::to_hugging_face(models::read_decoder_config(folder / "saved")),
                models::to_hugging_face(config));
    }
  }
}

TEST(ExpertDecoder, WhatDoesNotFitIsRefusedByName) {
  const models::DecoderConfig mixtral = models::read_decoder_config(folders()[0]);
  const auto refusal = [&](const std::function<void(train::Config&)>& change, const models::DecoderConfig& model) {
    train::Config config;
    config.mesh.ep = 2;
    change(config);
    return [config, model] { train::check_axes(config, model, train::RankPlace{}); };
  };
  const auto is_refused = [](const std::string& text) { return ThrowsMessage<Error>(HasSubstr(text)); };
  EXPECT_NO_THROW(refusal([](auto&) {}, mixtral)());
  EXPECT_THAT(refusal([](auto& config) { config.mesh.ep = 3; }, mixtral),
              is_refused("mesh.ep: got 3 with 8 experts of a layer (model.experts), expected a multiple of it: 6 or 9. "
                         "With this model mesh.ep may be 1, 2, 4, 8."));
  EXPECT_THAT(refusal([](auto&) {}, models::family_config("llama")), is_refused("which has no experts"));
  models::DecoderConfig even = mixtral;
  even.vocab_size = 54;
  EXPECT_NO_THROW(refusal([](auto& config) { config.mesh.tp = 2; }, even)());
  EXPECT_THAT(refusal([](auto& config) { config.optimizer.name = "muon"; }, mixtral), is_refused("whole matrices"));
  EXPECT_THAT(refusal([](auto& config) { config.tune.method = "lora"; }, mixtral), is_refused("lora"));
  EXPECT_THAT(refusal([](auto& config) { config.shard.precision = "fp8"; }, mixtral), is_refused("fp8"));
  EXPECT_THAT(refusal([](auto& config) { config.train.world_invariant = true; }, mixtral),
              is_refused("world_invariant"));
}

}  // namespace
}  // namespace fsdp::expert_decoder_test
