#include "models/config/stages.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fsdp::models {
namespace {

DecoderConfig config_of(int64_t layers, int64_t vocab_size) {
  DecoderConfig config;
  config.hidden_size = 64;
  config.intermediate_size = 256;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 4;
  config.head_dim = 16;
  config.num_hidden_layers = layers;
  config.vocab_size = vocab_size;
  return config;
}

// A layer has 4 x 64 x 64 + 3 x 64 x 256 = 65,536 weights, as much as 1,024 rows of the head; attention over 1 token is
// 128 more.
TEST(Stages, TheEndsHaveFewerLayers) {
  EXPECT_EQ(describe(cut_into_stages(config_of(8, 16), 1, 2)), "layers 0-3 | 4-7");
  EXPECT_EQ(describe(cut_into_stages(config_of(8, 16), 1, 1)), "layers 0-7");
  EXPECT_EQ(describe(cut_into_stages(config_of(10, 1024), 1, 3)), "layers 0-2 | 3-6 | 7-9");
  EXPECT_EQ(describe(cut_into_stages(config_of(10, 4096), 1, 3)), "layers 0-1 | 2-7 | 8-9");
  EXPECT_EQ(describe(cut_into_stages(config_of(4, 1 << 20), 1, 4)), "layers 0 | 1 | 2 | 3");
  EXPECT_EQ(describe(cut_into_stages(config_of(5, 1 << 20), 1, 3)), "layers 0 | 1-3 | 4");
}

// Against every other cut.
TEST(Stages, NoCutHasALighterHeaviestStage) {
  const int64_t layers = 9;
  for (const int64_t vocab_size : {8, 900, 2500, 9000}) {
    const DecoderConfig config = config_of(layers, vocab_size);
    const double end = static_cast<double>(vocab_size) / 1024;
    const auto heaviest = [&](int64_t first, int64_t second) {
      return std::max({end + static_cast<double>(first), static_cast<double>(second - first),
                       end + static_cast<double>(layers - second)});
    };
    const std::vector<BlockRange> chosen = cut_into_stages(config, 1, 3);
    ASSERT_EQ(chosen.size(), 3u);
    EXPECT_EQ(chosen.front().first, 0);
    EXPECT_EQ(chosen.back().last, layers);
    for (int64_t first = 1; first + 1 < layers; ++first) {
      for (int64_t second = first + 1; second < layers; ++second) {
        EXPECT_LE(heaviest(chosen[0].last, chosen[1].last), heaviest(first, second) + 0.05) << vocab_size;
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::models
