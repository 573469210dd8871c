// A decoder that is cut over "tp" as `fsdp train` cuts it has the losses, logits, gradients and files of the whole one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/fsdp.h"
#include "io/hub/model_folder.h"
#include "tests/io/temporary_folder.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"
#include "tests/train/model/model_files.h"
#include "train/axes/axes.h"
#include "train/axes/axis_checks.h"
#include "train/data/batch.h"
#include "train/model/build_model.h"
#include "train/model/replica_check.h"
#include "train/model/weights.h"

namespace fsdp::cut_decoder_test {
namespace {

using ::testing::AllOf;
using testing::expect_close;
using ::testing::HasSubstr;
using testing::run_ranks;
using ::testing::ThrowsMessage;

constexpr int64_t kRows = 4, kTokens = 16;  // rows: of all data ranks

struct Family {
  const char* name;
  models::AttentionBias bias;
  bool has_qk_norm;
  bool tied;
  int64_t window;
};

models::DecoderConfig config_of(const Family& family) {
  models::DecoderConfig config = train::small_config();
  config.model_type = family.name;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 8;
  config.attention_bias = family.bias;
  config.has_qk_norm = family.has_qk_norm;
  config.tie_word_embeddings = family.tied;
  config.sliding_window = family.window;
  config.initializer_range = 0.1;
  return config;
}

// Every parameter has values that tell, norms and biases too.
models::Decoder whole_decoder(const models::DecoderConfig& config) {
  models::Decoder decoder(config);
  decoder->reset_parameters(5);
  const at::NoGradGuard no_grad;
  at::Generator numbers = testing::generator(6);
  for (const auto& item : decoder->named_parameters()) {
    if (item.value().dim() == 1) item.value().add_(at::rand(item.value().sizes(), numbers), 0.5);
  }
  return decoder;
}

void write_folder(const models::Decoder& decoder, const std::filesystem::path& folder) {
  std::vector<io::TensorDeclaration> tensors;
  for (const auto& item : decoder->named_parameters())
    tensors.push_back({item.key(), io::DType::F32, item.value().sizes().vec()});
  std::filesystem::create_directories(folder);
  io::SafetensorsWriter writer(folder / "model.safetensors", tensors, {{"format", "pt"}});
  for (const auto& item : decoder->named_parameters())
    writer.write(item.key(), 0, item.value().numel(), item.value().const_data_ptr());
  writer.commit();
}

// Rows of packed documents; some targets do not count.
train::Batch some_batch(uint64_t seed, int64_t vocab_size) {
  const at::Generator numbers = testing::generator(seed);
  train::Batch batch;
  batch.input_ids_BT = at::randint(vocab_size, {kRows, kTokens}, numbers, at::kLong);
  at::Tensor targets = at::randint(vocab_size, {kRows * kTokens}, numbers, at::kLong);
  batch.targets_N = targets.masked_fill_(at::rand({kRows * kTokens}, numbers).lt(0.2), train::kNoTarget);
  std::vector<int64_t> starts;
  for (int64_t row = 0; row < kRows; ++row) {
    starts.push_back(row * kTokens);
    if (row % 2 == 1) starts.push_back(row * kTokens + 3 + row);
  }
  starts.push_back(kRows * kTokens);
  batch.sequence.cu_seqlens = at::tensor(starts, at::kLong);
  return batch;
}

// What a rank has of it.
train::Batch rows_of(const train::Batch& batch, const train::RankPlace& place) {
  const int64_t rows = kRows / place.num_data, first = place.data_index * rows;
  train::Batch own;
  own.input_ids_BT = batch.input_ids_BT.narrow(0, first, rows).contiguous();
  own.targets_N = batch.targets_N.narrow(0, first * kTokens, rows * kTokens).contiguous();
  std::vector<int64_t> starts;
  const int64_t* all = batch.sequence.cu_seqlens.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < batch.sequence.cu_seqlens.numel(); ++i) {
    const int64_t start = all[i] - first * kTokens;
    if (start >= 0 && start <= rows * kTokens) starts.push_back(start);
  }
  own.sequence.cu_seqlens = at::tensor(starts, at::kLong);
  return own;
}

// By LibTorch, from logits.
at::Tensor plain_loss(const at::Tensor& logits_BTV, const at::Tensor& targets_N, const kernels::LossTerms& terms) {
  const at::Tensor logits_NV = logits_BTV.flatten(0, 1);
  const at::Tensor entropy =
      at::cross_entropy_loss(logits_NV, targets_N, {}, at::Reduction::Sum, train::kNoTarget, terms.label_smoothing);
  const at::Tensor log_sums = logits_NV.logsumexp(-1).masked_fill(targets_N.eq(train::kNoTarget), 0);
  return entropy + terms.z_loss * log_sums.square().sum();
}

struct Layout {
  int ranks;
  int64_t tp, replicas;
  int64_t cp = 1;
  std::string strategy = "optim_grads_params";
  std::string recompute = "none";
  std::string projections = "separate";
  std::string exchange = "auto";
};

train::Config config_of(const Layout& layout) {
  train::Config config;
  config.mesh.tp = layout.tp;
  config.mesh.cp = layout.cp;
  config.mesh.cp_exchange = layout.exchange;
  config.shard.replicas = layout.replicas;
  config.shard.strategy = layout.strategy;
  config.train.recompute = layout.recompute;
  config.train.projections = layout.projections;
  return config;
}

void expect_equal_step(const World& world, const Layout& layout, const models::DecoderConfig& family,
                       const std::filesystem::path& folder) {
  const models::Decoder whole = whole_decoder(family);
  train::ShardedModel model =
      train::build_model({family, io::ModelFolder::open(folder)}, {}, config_of(layout), world, at::kCPU);
  EXPECT_EQ(train::num_parameters(model), models::num_parameters(family));
  const train::Batch batch = some_batch(7, family.vocab_size);
  const train::Batch own = train::part_of_sequences(rows_of(batch, model.place), model.place);
  const auto num_targets = batch.targets_N.ne(train::kNoTarget).sum().item<double>();
  const kernels::LossTerms terms{.z_loss = 1e-2, .label_smoothing = 0.1};

  const at::Tensor whole_logits = models::Decoder(whole)->forward(batch.input_ids_BT, batch.sequence);
  const at::Tensor expected = plain_loss(whole_logits, batch.targets_N, terms) / num_targets;
  expected.backward();

  const at::Tensor loss = train::summed_loss(model.decoder, own, terms) / num_targets;
  loss.backward();
  const at::Tensor counted = model.place.counts_losses ? loss.detach() : at::zeros({});
  expect_close(sum_over_ranks(world, counted), expected.detach(), 1e-5, "loss");
  const StateDict gradients = full_gradients(*model.decoder);
  for (const auto& item : whole->named_parameters()) {
    ASSERT_EQ(gradients.tensors.count(item.key()), 1U) << item.key();
    expect_close(gradients.tensors.at(item.key()), item.value().grad(), 2e-5, item.key());
  }
  const at::NoGradGuard no_grad;
  const at::Tensor own_logits = model.decoder->forward(own.input_ids_BT, own.sequence);
  const at::Tensor logits = model.axes->whole_sequences(own_logits, 1);
  const int64_t rows = own.input_ids_BT.size(0);
  expect_close(logits, whole_logits.narrow(0, model.place.data_index * rows, rows), 1e-5, "logits");
  train::compare_replicas(world, model, 1);
}

TEST(CutDecoder, LossesLogitsAndGradientsAreThoseOfTheWholeOne) {
  using models::AttentionBias;
  const Family families[] = {{"llama", AttentionBias::kInputsAndOutput, false, true, 0},
                             {"qwen2", AttentionBias::kInputs, false, false, 0},
                             {"qwen3", AttentionBias::kNone, true, true, 5}};
  const Layout layouts[] = {{2, 2, 1},
                            {2, 1, 1, 2},
                            {4, 1, 1, 4, "optim_grads_params", "block"},
                            {4, 1, 1, 4, "optim_grads_params", "block", "separate", "ring"},
                            {4, 2, 1, 2, "optim_grads_params", "none", "separate", "ring"},
                            {4, 1, 1, 2, "no_shard", "elementwise"},
                            {4, 2, 1, 2},
                            {4, 1, 2, 2, "hybrid"},
                            {4, 2, 1, 1, "optim_grads_params", "block"},
                            {4, 4, 1, 1, "optim_grads_params", "none", "fused"},
                            {4, 2, 2, 1, "hybrid"},
                            {4, 2, 1, 1, "no_shard"},
                            {4, 2, 1, 1, "optim_grads"}};
  for (const Family& family : families) {
    const models::DecoderConfig config = config_of(family);
    const io::TemporaryFolder folder;
    write_folder(whole_decoder(config), folder / "model");
    for (const Layout& layout : layouts) {
      const bool fuses = layout.projections == "fused";
      if (fuses && family.bias != AttentionBias::kNone) continue;  // biases keep weights apart
      SCOPED_TRACE(c10::str(family.name, ", ", layout.ranks, " ranks, tp ", layout.tp, ", cp ", layout.cp, ", ",
                            layout.strategy));
      run_ranks(layout.ranks, [&](const World& world) { expect_equal_step(world, layout, config, folder / "model"); });
    }
  }
}

// Drawn whole and cut, read and written: the bits of the whole model, in any precision.
TEST(CutDecoder, StartsFromAndWritesTheWholeModel) {
  const models::DecoderConfig config = config_of({"llama", models::AttentionBias::kInputsAndOutput, false, true, 0});
  const models::Decoder whole = whole_decoder(config);
  models::Decoder drawn(config);
  drawn->reset_parameters(1);
  const io::TemporaryFolder folder;
  write_folder(whole, folder / "whole");
  for (const std::string precision : {"fp32", "bf16"}) {
    for (const auto& [ranks, tp, cp] : {std::tuple{2, 2, 1}, {4, 4, 1}, {6, 2, 1}, {6, 1, 2}, {4, 2, 2}}) {
      SCOPED_TRACE(precision + ", " + std::to_string(ranks) + " ranks");
      run_ranks(ranks, [&, ranks = ranks, tp = tp, cp = cp](const World& world) {
        train::Config run = config_of(Layout{ranks, tp, 1, cp});
        run.shard.precision = precision;
        train::ShardedModel random = train::build_model({config, {}}, {}, run, world, at::kCPU);
        const StateDict weights = full_state_dict(*random.decoder);
        for (const auto& item : drawn->named_parameters())
          EXPECT_TRUE(at::equal(weights.tensors.at(item.key()), item.value().detach())) << item.key();
        train::ShardedModel model =
            train::build_model({config, io::ModelFolder::open(folder / "whole")}, {}, run, world, at::kCPU);
        train::save_model(model, world, folder / "saved", "none");
      });
      const io::ModelFolder saved = io::ModelFolder::open(folder / "saved");
      for (const auto& item : whole->named_parameters()) {
        at::Tensor read = at::empty_like(item.value()).detach();
        saved.read(item.key(), 0, read.numel(), read.data_ptr());
        EXPECT_TRUE(at::equal(read, item.value())) << item.key();
      }
    }
  }
}

TEST(CutDecoder, WhatDoesNotDivideIsRefusedWithWhatDoes) {
  const auto refusal = [](const std::function<void(train::Config&, models::DecoderConfig&)>& change) {
    train::Config config;
    config.mesh.tp = 2;
    models::DecoderConfig model = config_of({"llama", models::AttentionBias::kNone, false, true, 0});
    change(config, model);
    return [config, model] { train::check_axes(config, model, train::RankPlace{}); };
  };
  const auto is_refused = [](const std::string& text) { return ThrowsMessage<Error>(HasSubstr(text)); };
  EXPECT_NO_THROW(refusal([](auto&, auto&) {})());
  EXPECT_THAT(refusal([](auto& config, auto&) { config.mesh.tp = 3; }),
              is_refused("mesh.tp: got 3 with 8 attention heads (model.heads), expected a multiple of it: 6 or 9"));
  EXPECT_NO_THROW(refusal([](auto& config, auto&) { config.mesh.tp = 8; })());  // two copies of each of 4
  EXPECT_THAT(refusal([](auto&, auto& model) { model.num_key_value_heads = 3; }),
              ThrowsMessage<Error>(AllOf(HasSubstr("2 with 3 heads of keys and values (model.kv_heads)"),
                                         HasSubstr("expected a divisor or a multiple of it: 2 or 4"))));
  EXPECT_THAT(refusal([](auto&, auto& model) { model.vocab_size = 305; }), is_refused("304 or 306"));
  EXPECT_THAT(refusal([](auto&, auto& model) { model.intermediate_size = 97; }), is_refused("(model.ffn_size)"));
  EXPECT_THAT(refusal([](auto& config, auto&) { config.data.sequence_length = 33; }),
              is_refused("33 tokens of a sequence (data.sequence_length), expected a multiple of it: 32 or 34"));
  EXPECT_THAT(refusal([](auto& config, auto&) { config.optimizer.name = "muon"; }), is_refused("whole matrices"));
  EXPECT_THAT(refusal([](auto& config, auto&) { config.optimizer.name = "adamw_8bit"; }), is_refused("adamw_8bit"));
  EXPECT_THAT(refusal([](auto& config, auto&) { config.shard.precision = "fp8"; }), is_refused("\"fp8\""));
  // Stages and rings send messages, which NCCL does not carry here; "auto" is then no ring.
  const auto on_gpus = [&](const std::function<void(train::Config&)>& change) {
    return refusal([&](auto& config, auto&) {
      config.shard.device = "cuda";
      change(config);
    });
  };
  EXPECT_NO_THROW(on_gpus([](auto&) {})());
  EXPECT_NO_THROW(on_gpus([](auto& config) { config.mesh.cp = 2; })());
  EXPECT_EQ(train::exchange_on("cuda", "auto"), parallel::ContextExchange::kGather);
  EXPECT_EQ(train::exchange_on("cpu", "auto"), parallel::ContextExchange::kAuto);
  EXPECT_THAT(on_gpus([](auto& config) { config.mesh.pp = 2; }),
              is_refused("mesh.pp: got it with shard.device = \"cuda\" over NCCL, which carries no messages"));
  EXPECT_THAT(on_gpus([](auto& config) { config.mesh.cp = 2, config.mesh.cp_exchange = "ring"; }),
              is_refused("expected gather. Set that, or FSDP_DEVICE_TRANSPORT=host"));
  EXPECT_THAT(refusal([](auto& config, auto&) { config.tune.method = "lora", config.tune.lora_dropout = 0.1; }),
              is_refused("tune.lora_dropout = 0.1"));
  EXPECT_THAT(refusal([](auto& config, auto&) { config.mesh.cp_exchange = "ring"; }),
              is_refused("mesh.cp_exchange: got \"ring\" with mesh.cp = 1"));
  EXPECT_THAT(
      refusal([](auto& config, auto&) {
        config.mesh.cp = 4;
        config.data.sequence_length = 36;
      }),
      is_refused("mesh.cp: got 4 with 36 tokens of a sequence (data.sequence_length), expected a multiple of 8, "
                 "two chunks for each rank along \"cp\", divided by mesh.tp: 32 or 40"));
  EXPECT_THAT(refusal([](auto& config, auto&) { config.train.recompute = "gate_up"; }), is_refused("none or block"));
  EXPECT_THAT(refusal([](auto& config, auto&) { config.mesh.pp = 2, config.shard.offload = "disk"; }),
              is_refused("shard.offload"));
}

TEST(CutDecoder, RanksThatTheAxesDoNotDivideAreRefused) {
  run_ranks(3, [](const World& world) {
    EXPECT_THAT([&] { train::make_mesh(world, 1, {.tp = 2}); },
                ThrowsMessage<Error>(HasSubstr("mesh.tp: got 2 for 3 ranks, expected a divisor of the number of ranks. "
                                               "Change it, or start 2 or 4 ranks.")));
  });
  run_ranks(2, [](const World& world) {
    EXPECT_THAT([&] { train::make_mesh(world, 2, {.tp = 2}); },
                ThrowsMessage<Error>(HasSubstr("shard.replicas x mesh.cp x mesh.tp: got 2 x 1 x 2 for 2 ranks")));
    EXPECT_THAT([&] { train::make_mesh(world, 1, {.tp = 1, .cp = 3}); },
                ThrowsMessage<Error>(HasSubstr("mesh.cp: got 3 for 2 ranks")));
  });
}

}  // namespace
}  // namespace fsdp::cut_decoder_test
