#include "train/generation.h"

#include <gtest/gtest.h>

namespace fsdp::train {
namespace {

models::Decoder tiny_model() {
  models::DecoderConfig config;
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.intermediate_size = 16;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 4;
  config.tie_word_embeddings = true;
  config.initializer_range = 0.7;
  models::Decoder model(config);
  model->reset_parameters(3);
  return model;
}

std::vector<int64_t> ids(const GenerationOptions& options, const std::vector<int64_t>& stop = {}) {
  models::Decoder model = tiny_model();
  std::vector<int64_t> result;
  generate(model, {1, 2, 3}, stop, options, [&](int64_t id) { result.push_back(id); });
  return result;
}

TEST(Generation, GreedyEqualsTheFullForward) {
  const auto cached = ids({.max_tokens = 12, .temperature = 0});
  models::Decoder model = tiny_model();
  std::vector<int64_t> all{1, 2, 3};
  const at::NoGradGuard no_grad;
  for (int i = 0; i < 12; ++i) {
    const at::Tensor logits_BTV = model->forward(at::tensor(all, at::kLong).unsqueeze(0));
    all.push_back(logits_BTV.select(0, 0).select(0, -1).argmax().item<int64_t>());
  }
  EXPECT_EQ(cached, std::vector<int64_t>(all.begin() + 3, all.end()));
}

TEST(Generation, SeedDecides) {
  EXPECT_EQ(ids({.max_tokens = 30, .seed = 4}), ids({.max_tokens = 30, .seed = 4}));
  EXPECT_NE(ids({.max_tokens = 30, .seed = 4}), ids({.max_tokens = 30, .seed = 5}));
}

TEST(Generation, TopOneIsGreedy) {
  EXPECT_EQ(ids({.max_tokens = 12, .temperature = 3, .top_k = 1}), ids({.max_tokens = 12, .temperature = 0}));
}

TEST(Generation, StopsAtAStopId) {
  const auto free_run = ids({.max_tokens = 12, .temperature = 0});
  const auto stopped = ids({.max_tokens = 12, .temperature = 0}, {free_run[4]});
  EXPECT_LE(stopped.size(), 4u);
}

}  // namespace
}  // namespace fsdp::train
