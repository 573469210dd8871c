// The trainer on a device: numbers of the CPU, every order among streams, and how often the host waits.
#include "train/loop/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <cmath>

#include "fsdp/comm/connection.h"
#include "kernels/products/fp8_tensors.h"
#include "kernels/products/linear_parts.h"
#include "tests/device/fake_device.h"
#include "tests/device/fake_flat_kernels.h"
#include "tests/device/fake_recorder.h"
#include "tests/train/model/answer_batches.h"
#include "train/evaluate/evaluation.h"
#include "train/model/fp8_layers.h"
#include "train/model/graphed_blocks.h"
#include "train/model/recomputation.h"

namespace fsdp::train::trainer_test {
namespace {

// What a library of kernels brings for its device (kernels/cuda/*_cuda.cpp), in operators of LibTorch.
at::Tensor embedding_backward(const at::Tensor& grad_NE, const at::Tensor& ids_N, int64_t num_rows) {
  return at::embedding_dense_backward(grad_NE, ids_N, num_rows, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
}

// Documents and windows by one mask.
at::Tensor attention(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                     at::IntArrayRef lengths, int64_t window) {
  const int64_t group = q_BTHD.size(2) / k_BTKD.size(2), rows = q_BTHD.size(0), tokens = q_BTHD.size(1);
  const auto heads_first = [](const at::Tensor& x) { return x.transpose(1, 2); };
  const at::Tensor q = heads_first(q_BTHD), k = heads_first(k_BTKD).repeat_interleave(group, 1),
                   v = heads_first(v_BTKD).repeat_interleave(group, 1);
  const at::Tensor all = at::ones({rows, tokens, tokens}, q.options().dtype(at::kFloat));
  at::Tensor seen_BTT = all.tril(0);
  if (window > 0) seen_BTT = seen_BTT * all.triu(1 - window);
  if (!lengths.empty()) {
    const at::Tensor lengths_D = at::tensor(lengths, at::kLong);
    const at::Tensor document_BT = at::repeat_interleave(at::arange(lengths_D.numel()), lengths_D).view({rows, tokens});
    seen_BTT = seen_BTT * document_BT.unsqueeze(2).eq(document_BT.unsqueeze(1)).to(at::kFloat).to(q.device());
  }
  const at::Tensor hidden = ((1 - seen_BTT) * -1e30).unsqueeze(1);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)).to(at::kFloat) * scale + hidden;
  return heads_first(at::matmul(at::softmax(scores, 3).to(v.scalar_type()), v)).contiguous();
}

// What hardware does with fp8 numbers; LibTorch's own for CPUs needs more than AVX2.
at::Tensor scaled_mm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a, const at::Tensor& scale_b,
                     const std::optional<at::Tensor>&, const std::optional<at::Tensor>&,
                     std::optional<at::ScalarType> type, bool) {
  return (at::mm(a.to(at::kFloat), b.to(at::kFloat)) * scale_a * scale_b).to(*type);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) { library.impl("_scaled_mm", scaled_mm); }

TORCH_LIBRARY_IMPL(fsdp, PrivateUse1, library) {
  library.impl("embedding_backward", embedding_backward);
  library.impl("fused_linear", kernels::fused_product);
  library.impl("fp8_linear", kernels::fp8_product_on_device);
}

TORCH_LIBRARY_IMPL(fsdp, AutogradPrivateUse1, library) { library.impl("causal_attention", attention); }

using testing::AnswerBatches;
using testing::fake_device;
using testing::stream_clocks;

constexpr int kSteps = 4;
constexpr int64_t kMicroRows = 4;

models::DecoderConfig small_decoder() {
  models::DecoderConfig config;
  config.model_type = "llama";
  config.vocab_size = 160;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.max_position_embeddings = 64;
  config.tie_word_embeddings = true;
  return config;
}

TrainConfig train_config() {
  TrainConfig config;
  config.steps = kSteps;
  config.warmup_steps = 1;
  config.clip = 0.5;
  return config;
}

struct Numbers {
  std::vector<double> losses, norms;
  std::vector<at::Tensor> weights;  // on the CPU
};

struct Plan {
  std::string name;
  std::string precision;
  Recompute recompute = Recompute::kNone;
  std::string projections = "separate";
  bool graphs = false;
  std::string fp8_recipe = ShardConfig().fp8_recipe;
  BlockInputs inputs = BlockInputs::kKept;
  std::string offload = "none";  // on the device
};

Numbers train_on(c10::Device device, const Plan& plan, std::vector<int64_t>* waits = nullptr) {
  const World world = comm::connect_alone();
  models::Decoder decoder(small_decoder(), at::TensorOptions(device));
  decoder->reset_parameters(11);
  set_recomputation(decoder, {.what = plan.recompute, .inputs = plan.inputs});
  ShardConfig shard;
  shard.precision = plan.precision;
  shard.device = device.is_cpu() ? "cpu" : "cuda";
  shard.fp8_recipe = plan.fp8_recipe;
  if (!device.is_cpu()) shard.offload = plan.offload;
  shard.fp8_keep = "";
  if (plan.precision == "fp8") use_fp8(decoder, shard);
  ShardOptions options = shard_options(shard);
  options.whole_weights = WholeWeights::kCopied;
  if (plan.graphs) keep_addresses(options);
  ShardedModel model = parallelize(std::move(decoder), make_mesh(world, 1), options);
  set_projections(model, plan.projections);
  if (plan.graphs) graph_blocks(model);
  const AnswerBatches batches(0, 1, kMicroRows, small_decoder().vocab_size, 5);
  Trainer trainer(train_config(), world, batches, model);
  Numbers numbers;
  for (int step = 0; step < kSteps; ++step) {
    stream_clocks().clear();
    const StepResult result = trainer.step();
    EXPECT_THAT(stream_clocks().races(), ::testing::IsEmpty());
    EXPECT_EQ(stream_clocks().num_recorded_streams(), 0);
    if (waits != nullptr) waits->push_back(stream_clocks().num_host_waits());
    numbers.losses.push_back(result.loss);
    numbers.norms.push_back(result.grad_norm);
  }
  for (const at::Tensor& leaf : trainer.leaves()) numbers.weights.push_back(leaf.detach().cpu());
  return numbers;
}

void expect_numbers_of_the_cpu(const Plan& plan) {
  const double tolerance = plan.precision != "fp32" ? 2e-2 : 2e-5;
  const Numbers expected = train_on(at::kCPU, plan);
  const Numbers numbers = train_on(fake_device(), plan);
  for (size_t step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(numbers.losses[step], expected.losses[step], tolerance * expected.losses[step]) << step;
    EXPECT_NEAR(numbers.norms[step], expected.norms[step], 5 * tolerance * expected.norms[step]) << step;
  }
  // Of fp8 a gradient near zero may have another sign, and with AdamW so has its weight's step.
  const bool is_fp8 = plan.precision == "fp8";
  for (size_t i = 0; i < numbers.weights.size(); ++i) {
    const at::Tensor distance = (numbers.weights[i] - expected.weights[i]).abs();
    EXPECT_LE((is_fp8 ? distance.mean() : distance.max()).item<double>(), is_fp8 ? 3e-4 : 3e-3) << i;
  }
}

class DeviceTrainer : public ::testing::TestWithParam<Plan> {
 protected:
  const testing::FakeFlatKernels kernels_;
  const testing::FakeRecorders recorders_;
};

TEST_P(DeviceTrainer, HasTheNumbersOfTheCpu) { expect_numbers_of_the_cpu(GetParam()); }

TEST(DeviceTrainerOnHost, KeepsItsStateThere) {
  const testing::FakeFlatKernels kernels;
  const testing::FakeRecorders recorders;
  for (const char* precision : {"fp32", "bf16"})
    expect_numbers_of_the_cpu({.name = "host", .precision = precision, .offload = "host"});
}

// Beside the copies of ids and targets, whose memory is not pinned here: for loss and norm together; in the first
// step also for the table of rotations, sines and cosines.
TEST_P(DeviceTrainer, TheHostWaitsOnceInAStep) {
  std::vector<int64_t> waits;
  train_on(fake_device(), GetParam(), &waits);
  constexpr int64_t kMicrobatches = AnswerBatches::kRows / kMicroRows;
  // Inputs of blocks go to the host and, but for the last's, come back.
  const int64_t travels = GetParam().inputs == BlockInputs::kOnHost ? 2 * small_decoder().num_hidden_layers - 1 : 0;
  const int64_t usual = 2 * kMicrobatches + 1 + travels * kMicrobatches;
  EXPECT_THAT(waits, ::testing::ElementsAre(usual + 2, usual, usual, usual));
}

TEST(Fp8OnDevices, RefusesWhatTheyDoNotMultiply) {
  const models::Decoder decoder(small_decoder());
  const auto refusal = [&](const std::string& recipe, bool gathers) -> std::string {
    ShardConfig shard;
    shard.device = "cuda";
    shard.precision = "fp8";
    shard.fp8_recipe = recipe;
    shard.fp8_gather = gathers;
    try {
      use_fp8(decoder, shard);
    } catch (const Error& error) {
      return error.what();
    }
    return "taken";
  };
  for (const std::string recipe : {"mxfp8", "blockwise", "delayed"}) {
    const std::string problem = "got " + recipe + " with shard.device = \"cuda\", expected tensorwise or rowwise";
    EXPECT_THAT(refusal(recipe, false), ::testing::HasSubstr(problem));
  }
  EXPECT_THAT(
      refusal("tensorwise", true),
      ::testing::HasSubstr("shard.fp8_gather: got it with shard.device = \"cuda\", expected it on the CPU only"));
}

INSTANTIATE_TEST_SUITE_P(
    Plans, DeviceTrainer,
    ::testing::Values(
        Plan{"fp32", "fp32"}, Plan{"bf16", "bf16"}, Plan{"elementwise", "bf16", Recompute::kElementwise},
        Plan{"gate_up", "fp32", Recompute::kGateUp}, Plan{"block", "fp32", Recompute::kBlock},
        Plan{.name = "offload", .precision = "fp32", .recompute = Recompute::kBlock, .inputs = BlockInputs::kOnHost},
        Plan{"fused", "bf16", Recompute::kElementwise, "fused"}, Plan{"fp8_rowwise", "fp8"},
        Plan{"fp8_tensorwise", "fp8", Recompute::kElementwise, "fused", false, "tensorwise"},
        Plan{"graphs", "fp32", Recompute::kNone, "separate", true},
        Plan{"fused_graphs", "bf16", Recompute::kNone, "fused", true}),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace fsdp::train::trainer_test
