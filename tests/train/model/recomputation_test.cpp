#include "train/model/recomputation.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>

#include "fsdp/fsdp.h"
#include "kernels/operators/cross_entropy.h"
#include "tests/train/model/held_bytes.h"
#include "tests/train/model/model_files.h"

namespace fsdp::train {
namespace {

using testing::ids_of;

constexpr Recompute kAll[] = {Recompute::kNone, Recompute::kElementwise, Recompute::kGateUp, Recompute::kBlock};

models::DecoderConfig config_with(int64_t layers, bool qk_norm) {
  models::DecoderConfig config = small_config();
  config.num_hidden_layers = layers;
  config.has_qk_norm = qk_norm;
  return config;
}

models::Decoder decoder_of(const models::DecoderConfig& config, at::ScalarType dtype, const Recomputation& how) {
  models::Decoder decoder(config, at::TensorOptions().dtype(dtype));
  decoder->reset_parameters(5);
  set_recomputation(decoder, how);
  return decoder;
}

TEST(Recomputation, ChangesNoBitOfLossAndGradients) {
  const at::Tensor ids = ids_of(2, 24), targets = models::shift_labels(ids).view(-1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool qk_norm : {false, true}) {
      std::vector<at::Tensor> expected;
      for (const Recompute what : kAll) {
        for (const int64_t every : {1, 2}) {
          SCOPED_TRACE(c10::str(dtype, ", heads' norms ", qk_norm, ", ", static_cast<int>(what), ", every ", every));
          models::Decoder decoder = decoder_of(config_with(3, qk_norm), dtype, {what, every});
          const at::Tensor loss = decoder->loss(ids, targets);
          loss.backward();
          std::vector<at::Tensor> results{loss.detach()};
          for (const at::Tensor& parameter : decoder->parameters()) results.push_back(parameter.grad());
          if (expected.empty()) expected = results;
          for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(at::equal(results[i], expected[i])) << "tensor " << i;
        }
      }
    }
  }
}

// What the graph of a forward holds.
int64_t bytes_of_graph(int64_t layers, bool qk_norm, at::ScalarType dtype, const Recomputation& how,
                       const at::Tensor& ids) {
  models::Decoder decoder = decoder_of(config_with(layers, qk_norm), dtype, how);
  return testing::bytes_of_graph(decoder, ids);
}

// Of four blocks more and of 512 tokens more: what does not grow with both is not the formula's.
TEST(Recomputation, BlocksKeepWhatTheFormulaSays) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool qk_norm : {false, true}) {
      for (const Recompute what : kAll) {
        SCOPED_TRACE(c10::str(dtype, ", heads' norms ", qk_norm, ", ", static_cast<int>(what)));
        const auto of_four_blocks = [&](int64_t length) {
          const at::Tensor ids = ids_of(2, length);
          return bytes_of_graph(5, qk_norm, dtype, {what, 1}, ids) - bytes_of_graph(1, qk_norm, dtype, {what, 1}, ids);
        };
        EXPECT_EQ(
            of_four_blocks(512) - of_four_blocks(256),
            4 * 512 *
                kept_bytes_per_token(config_with(1, qk_norm), what, static_cast<int64_t>(c10::elementSize(dtype))));
      }
    }
  }
}

TEST(Recomputation, OfEverySecondBlockSavesHalf) {
  const at::Tensor ids = ids_of(2, 256);
  std::map<int64_t, int64_t> held;
  for (const int64_t every : {1, 2})
    held[every] = bytes_of_graph(4, false, at::kFloat, {Recompute::kGateUp, every}, ids);
  const int64_t none = bytes_of_graph(4, false, at::kFloat, {}, ids);
  EXPECT_NEAR(static_cast<double>(none - held[2]), static_cast<double>(none - held[1]) / 2, 0.01 * none);
}

// SmolLM3-3B in bf16 at 8192 tokens: 27.3, 18.4 and 5.5 GB (all layers).
TEST(Recomputation, FormulaOfAKnownModel) {
  models::DecoderConfig config;
  config.hidden_size = 2048;
  config.intermediate_size = 11008;
  config.num_attention_heads = 16;
  config.num_key_value_heads = 4;
  config.head_dim = 128;
  const auto gigabytes = [&](Recompute what) {
    return 36 * 8192 * static_cast<double>(kept_bytes_per_token(config, what, 2)) / 1e9;
  };
  EXPECT_NEAR(gigabytes(Recompute::kNone), 27.4, 0.1);
  EXPECT_NEAR(gigabytes(Recompute::kElementwise), 18.4, 0.1);
  EXPECT_NEAR(gigabytes(Recompute::kGateUp), 5.5, 0.1);
  EXPECT_NEAR(gigabytes(Recompute::kBlock), 1.2, 0.1);
}

TEST(Recomputation, EveryNthBlockOfNothingIsRefused) {
  try {
    parse_recomputation("none", 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("train.recompute_every: got 2"), std::string::npos) << error.what();
  }
  EXPECT_EQ(parse_recomputation("gate_up", 2).what, Recompute::kGateUp);
  EXPECT_EQ(parse_recomputation("gate_up", 2).every, 2);
}

}  // namespace
}  // namespace fsdp::train
