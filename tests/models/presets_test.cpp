// Presets against the numbers that are published with the models.
#include "models/config/presets.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace fsdp::models::presets_test {
namespace {

// Parameters of the published weights; a tied embedding counts once.
const std::map<std::string, int64_t>& published_counts() {
  static const std::map<std::string, int64_t> counts = {
      {"smollm2-135m", 134515008},     {"smollm2-360m", 361821120},     {"smollm2-1.7b", 1711376384},
      {"smollm3-3b", 3075098624},      {"llama-3.2-1b", 1235814400},    {"llama-3.2-3b", 3212749824},
      {"llama-3.1-8b", 8030261248},    {"llama-3.1-70b", 70553706496},  {"llama-3.1-405b", 405853388800},
      {"llama-2-7b", 6738415616},      {"llama-2-13b", 13015864320},    {"llama-2-70b", 68976648192},
      {"mistral-7b-v0.1", 7241732096}, {"mistral-7b-v0.3", 7248023552}, {"qwen2.5-0.5b", 494032768},
      {"qwen2.5-1.5b", 1543714304},    {"qwen2.5-3b", 3085938688},      {"qwen2.5-7b", 7615616512},
      {"qwen2.5-14b", 14770033664},    {"qwen2.5-32b", 32763876352},    {"qwen2.5-72b", 72706203648},
      {"qwen3-0.6b", 596049920},       {"qwen3-1.7b", 1720574976},      {"qwen3-4b", 4022468096},
      {"qwen3-8b", 8190735360},        {"qwen3-14b", 14768307200},      {"qwen3-32b", 32762123264},
      {"mixtral-8x7b", 46702792704},   {"qwen3-30b-a3b", 30532122624},  {"qwen3-235b-a22b", 235093634560}};
  return counts;
}

TEST(Presets, HaveThePublishedNumberOfParameters) {
  std::set<std::string> names;
  for (const Preset& preset : presets()) {
    const auto expected = published_counts().find(preset.name);
    ASSERT_NE(expected, published_counts().end()) << preset.name;
    EXPECT_EQ(num_parameters(preset.config), expected->second) << preset.name;
    EXPECT_TRUE(names.insert(preset.name).second) << preset.name << " twice";
  }
  EXPECT_EQ(names.size(), published_counts().size());
}

TEST(Presets, AreWhatTheirConfigJsonSays) {
  for (const Preset& preset : presets()) {
    const nlohmann::json written = to_hugging_face(preset.config);
    const DecoderConfig again = parse_decoder_config(written, preset.name);
    EXPECT_EQ(to_hugging_face(again), written) << preset.name;
    EXPECT_EQ(num_parameters(again), num_parameters(preset.config)) << preset.name;
    EXPECT_NE(preset.published.find('/'), std::string::npos);
  }
}

TEST(Presets, AreFoundByName) {
  EXPECT_EQ(find_preset("mistral-7b-v0.1")->config.window(0), 4096);
  EXPECT_EQ(find_preset("mistral-7b-v0.3")->config.window(0), 0);
  EXPECT_FALSE(find_preset("smollm3-3b")->config.has_rope(35));
  EXPECT_EQ(find_preset("qwen3-0.6b")->config.head_dim, 128);
  EXPECT_EQ(find_preset("gpt-5"), nullptr);
  EXPECT_EQ(find_preset(""), nullptr);
}

}  // namespace
}  // namespace fsdp::models::presets_test
