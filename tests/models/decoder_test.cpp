#include "models/decoder.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kernels/operators/cross_entropy.h"
#include "tests/models/golden.h"

namespace fsdp::models::decoder_test {
namespace {

DecoderConfig small_config(bool tied) {
  DecoderConfig config;
  config.vocab_size = 50;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.tie_word_embeddings = tied;
  config.no_rope_layers = {true, false, true};
  return config;
}

Decoder small_decoder(bool tied, at::ScalarType dtype = at::kFloat, uint64_t seed = 7) {
  Decoder model(small_config(tied), at::TensorOptions().dtype(dtype));
  model->reset_parameters(seed);
  return model;
}

at::Tensor some_ids(int64_t rows, int64_t length) {
  return (at::arange(rows * length, at::kLong) * 7919 % 50).view({rows, length});
}

TEST(Decoder, HasHuggingFaceNames) {
  Decoder model = small_decoder(/*tied=*/false);
  const auto names = model->named_parameters().keys();
  const std::vector<std::string> expected_start = {"model.embed_tokens.weight",
                                                   "model.layers.0.self_attn.q_proj.weight",
                                                   "model.layers.0.self_attn.k_proj.weight",
                                                   "model.layers.0.self_attn.v_proj.weight",
                                                   "model.layers.0.self_attn.o_proj.weight",
                                                   "model.layers.0.mlp.gate_proj.weight",
                                                   "model.layers.0.mlp.up_proj.weight",
                                                   "model.layers.0.mlp.down_proj.weight",
                                                   "model.layers.0.input_layernorm.weight",
                                                   "model.layers.0.post_attention_layernorm.weight"};
  ASSERT_EQ(names.size(), 3u + 9u * 3u);
  EXPECT_EQ(std::vector<std::string>(names.begin(), names.begin() + 10), expected_start);
  EXPECT_EQ(names[names.size() - 2], "model.norm.weight");
  EXPECT_EQ(names.back(), "lm_head.weight");
  EXPECT_EQ(small_decoder(/*tied=*/true)->named_parameters().size(), 2u + 9u * 3u);
  EXPECT_TRUE(model->named_buffers().is_empty());
  EXPECT_EQ(model->layers()->size(), 3u);
}

TEST(Decoder, BiasesAndHeadNormsAreNamedAsHuggingFaceNamesThem) {
  DecoderConfig config = small_config(/*tied=*/true);
  config.attention_bias = AttentionBias::kInputsAndOutput;
  config.has_qk_norm = true;
  Decoder model(config);
  model->reset_parameters(1);
  const auto parameters = model->named_parameters();
  const std::string block = "model.layers.1.self_attn.";
  for (const char* name : {"q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"}) {
    ASSERT_TRUE(parameters.contains(block + name)) << name;
    EXPECT_TRUE((parameters[block + name] == 0).all().item<bool>()) << name;
  }
  for (const char* name : {"q_norm.weight", "k_norm.weight"})
    EXPECT_EQ(parameters[block + name].sizes(), at::IntArrayRef({8})) << name;
  int64_t count = 0;
  for (const auto& parameter : parameters) count += parameter.value().numel();
  EXPECT_EQ(count, num_parameters(config));
}

// A token sees its window in each layer, so with 3 layers nothing from before 3 * (window - 1) tokens; one token at a
// time with a cache sees the same.
TEST(Decoder, SlidingWindowLimitsWhatATokenSeesWithAndWithoutCache) {
  DecoderConfig config = small_config(/*tied=*/true);
  config.sliding_window = 4;
  Decoder model(config);
  model->reset_parameters(3);
  const at::Tensor ids = some_ids(1, 60);
  at::Tensor other = ids.clone();
  other.slice(1, 0, 20).fill_(1);
  const at::Tensor logits = model->forward(ids);
  EXPECT_LE(largest_difference(logits.slice(1, 29), model->forward(other).slice(1, 29)), 1e-6);
  EXPECT_GE(largest_difference(logits.slice(1, 28), model->forward(other).slice(1, 28)), 1e-6);
  KeyValueCache cache;
  for (int64_t token = 0; token < ids.size(1); ++token) {
    const at::Tensor step = model->forward_cached(ids.slice(1, token, token + 1), cache);
    EXPECT_LE(largest_difference(step, logits.slice(1, token, token + 1)), 1e-6) << token;
  }
}

TEST(Decoder, StartValuesDependOnSeedAndNameOnly) {
  Decoder a = small_decoder(false), b = small_decoder(true), c = small_decoder(false, at::kFloat, 8);
  at::randn({3});  // the global generator plays no part
  Decoder low = small_decoder(false, at::kBFloat16);
  const auto in_b = b->named_parameters(), in_c = c->named_parameters(), in_low = low->named_parameters();
  for (const auto& parameter : a->named_parameters()) {
    const at::Tensor& value = parameter.value();
    if (in_b.contains(parameter.key())) {
      EXPECT_TRUE(at::equal(value, in_b[parameter.key()])) << parameter.key();
    }
    EXPECT_TRUE(at::equal(value.to(at::kBFloat16), in_low[parameter.key()])) << parameter.key();
    if (value.dim() == 1) {
      EXPECT_TRUE((value == 1).all().item<bool>());
    } else {
      EXPECT_FALSE(at::equal(value, in_c[parameter.key()])) << parameter.key();
      EXPECT_NEAR(value.std().item<double>(), 0.02, 0.002) << parameter.key();
    }
  }
}

TEST(Decoder, LooksOnlyBackwards) {
  Decoder model = small_decoder(true);
  at::Tensor ids = some_ids(2, 12);
  const at::Tensor before = model->forward(ids);
  ids.slice(1, 8).fill_(3);
  EXPECT_TRUE(at::equal(model->forward(ids).slice(1, 0, 8), before.slice(1, 0, 8)));
}

TEST(Decoder, Bfloat16StaysNearFp32) {
  Decoder wide = small_decoder(false), low = small_decoder(false, at::kBFloat16);
  const at::Tensor ids = some_ids(2, 40);
  const at::Tensor logits = low->forward(ids);
  EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
  EXPECT_LE(relative_difference(logits, wide->forward(ids)), 0.05);
}

TEST(Decoder, BlockRunnerSeesEveryBlockOnce) {
  Decoder model = small_decoder(true);
  const at::Tensor ids = some_ids(1, 9), plain = model->forward(ids);
  int64_t calls = 0;
  model->set_block_runner([&](int64_t number, const Block& block, const at::Tensor& x, const AttentionInputs& inputs) {
    EXPECT_EQ(number, calls++);
    at::Tensor first;
    {
      at::NoGradGuard no_grad;
      first = block(x, inputs);
    }
    EXPECT_TRUE(at::equal(first, block(x, inputs)));  // may be run again
    return block(x, inputs);
  });
  EXPECT_TRUE(at::equal(model->forward(ids), plain));
  EXPECT_EQ(calls, 3);
}

TEST(Decoder, HandlesOneTokenAndNone) {
  Decoder model = small_decoder(true);
  EXPECT_EQ(model->forward(some_ids(1, 1)).sizes(), at::IntArrayRef({1, 1, 50}));
  EXPECT_EQ(model->forward(some_ids(0, 4)).sizes(), at::IntArrayRef({0, 4, 50}));
}

TEST(Decoder, RowsOfOneDocumentEachNeedNoSequence) {
  Decoder model = small_decoder(true);
  const at::Tensor ids = some_ids(3, 5);
  Sequence sequence;
  sequence.cu_seqlens = at::tensor({0, 5, 10, 15}, at::kInt);
  EXPECT_TRUE(at::equal(model->forward(ids, sequence), model->forward(ids)));
}

TEST(Decoder, RefusesASequenceThatDoesNotFit) {
  Decoder model = small_decoder(true);
  const at::Tensor ids = some_ids(2, 5);
  for (const std::vector<int64_t>& starts :
       {std::vector<int64_t>{0, 9}, {1, 10}, {0, 10}, {0, 6, 10}, {0, 5, 5, 10}, {0, 7, 5, 10}, {10}}) {
    Sequence sequence;
    sequence.cu_seqlens = at::tensor(starts);
    EXPECT_THROW(model->forward(ids, sequence), c10::Error) << starts;
  }
  Sequence sequence;
  sequence.position_ids_BT = at::zeros({1, 5}, at::kLong);
  EXPECT_THROW(model->forward(ids, sequence), c10::Error);
  EXPECT_THROW(model->forward(ids.to(at::kInt)), c10::Error);
  EXPECT_THROW(model->forward(at::full({1, 2}, 50, at::kLong)), c10::Error);
  EXPECT_THROW(model->forward(at::full({1, 2}, -1, at::kLong)), c10::Error);
}

TEST(ShiftLabels, MovesTargetsOneToTheLeft) {
  EXPECT_TRUE(at::equal(shift_labels(at::tensor({1, 2, 3, 4, -100, 6}, at::kLong).view({2, 3})),
                        at::tensor({2, 3, -100, -100, 6, -100}, at::kLong).view({2, 3})));
  EXPECT_TRUE(at::equal(shift_labels(at::ones({2, 1}, at::kLong)), at::full({2, 1}, -100, at::kLong)));
}

}  // namespace
}  // namespace fsdp::models::decoder_test
