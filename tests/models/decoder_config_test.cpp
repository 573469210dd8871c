#include "models/config/decoder_config.h"

#include <gtest/gtest.h>

#include "io/base/error.h"

namespace fsdp::models::decoder_config_test {
namespace {

using nlohmann::json;

json llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 100},
          {"hidden_size", 32},
          {"intermediate_size", 48},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"rope_theta", 5e5}};
}

json with(json object, const char* key, json value) {
  object[key] = std::move(value);
  return object;
}

std::string error_of(const json& object) {
  try {
    parse_decoder_config(object, "test");
  } catch (const io::Error& error) {
    EXPECT_EQ(error.kind(), io::ErrorKind::kModel);
    return error.what();
  }
  return "";
}

TEST(DecoderConfig, AbsentKeysFollowTheFamily) {
  const DecoderConfig config = parse_decoder_config(llama(), "test");
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.rope.theta, 5e5);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_TRUE(config.has_rope(2));
  EXPECT_TRUE(config.warnings.empty());

  json object = llama();
  object["model_type"] = "smollm3";
  object.erase("architectures");
  object.erase("rope_theta");
  object["num_hidden_layers"] = 8;
  const DecoderConfig smollm3 = parse_decoder_config(object, "test");
  EXPECT_EQ(smollm3.rope.theta, 2e6);
  EXPECT_TRUE(smollm3.tie_word_embeddings);
  EXPECT_EQ(smollm3.no_rope_layers, (std::vector<bool>{true, true, true, false, true, true, true, false}));
}

TEST(DecoderConfig, BothLayoutsOfTheRotaryEmbedding) {
  const json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 64}};
  const DecoderConfig old_layout = parse_decoder_config(with(llama(), "rope_scaling", scaling), "test");
  json object = llama();
  object.erase("rope_theta");
  object["rope_parameters"] = with(scaling, "rope_theta", 5e5);
  const DecoderConfig new_layout = parse_decoder_config(object, "test");
  for (const DecoderConfig& config : {old_layout, new_layout}) {
    EXPECT_EQ(config.rope.kind, RopeConfig::Kind::kLlama3);
    EXPECT_EQ(config.rope.theta, 5e5);
    EXPECT_EQ(config.rope.factor, 8);
    EXPECT_EQ(config.rope.original_max_position_embeddings, 64);
  }
  // Both present: rope_scaling wins unless it is empty; its missing theta comes from the top level.
  object["rope_scaling"] = {{"type", "default"}};
  object["rope_theta"] = 7e4;
  EXPECT_EQ(parse_decoder_config(object, "test").rope.kind, RopeConfig::Kind::kDefault);
  EXPECT_EQ(parse_decoder_config(object, "test").rope.theta, 7e4);
  object["rope_scaling"] = json::object();
  EXPECT_EQ(parse_decoder_config(object, "test").rope.kind, RopeConfig::Kind::kLlama3);
}

TEST(DecoderConfig, RoundTripsThroughHuggingFace) {
  json object = llama();
  object["eos_token_id"] = {2, 5};
  object["bos_token_id"] = 1;
  object["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 64}};
  const DecoderConfig config = parse_decoder_config(object, "test");
  EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{2, 5}));
  const json written = to_hugging_face(config);
  const DecoderConfig again = parse_decoder_config(written, "test");
  EXPECT_EQ(to_hugging_face(again), written);
  EXPECT_TRUE(again.warnings.empty());
}

TEST(DecoderConfig, RefusesEverySettingThatChangesTheMaths) {
  const std::vector<std::pair<const char*, json>> cases = {
      {"mlp_bias", true},
      {"attention_dropout", 0.1},
      {"hidden_act", "gelu"},
      {"sliding_window", 4096},
      {"layer_types", {"full_attention", "sliding_attention", "full_attention"}},
      {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}},
      {"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}}},
      {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 2.0}}},
      {"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}},
      {"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}},
      {"partial_rotary_factor", 0.5},
      {"quantization_config", {{"bits", 4}}},
      {"no_rope_layers", {1, 0, 1}},
      {"num_key_value_heads", 3},
      {"num_key_value_heads", 0},
      {"head_dim", 7},
      {"vocab_size", "many"},
      {"vocab_size", -1},
      {"vocab_size", 18446744073709551615u},
      {"num_hidden_layers", 1.5},
      {"rms_norm_eps", "small"},
      {"eos_token_id", {1, 100}},
      {"tie_word_embeddings", "yes"},
      {"architectures", {"LlamaForSequenceClassification"}}};
  for (const auto& [key, value] : cases) {
    const std::string message = error_of(with(llama(), key, value));
    EXPECT_NE(message.find(key), std::string::npos) << key << " = " << value << ": " << message;
  }
}

TEST(DecoderConfig, AcceptsTheSameSettingsWhenTheyAreNeutral) {
  json object = llama();
  object.update({{"attention_bias", false},
                 {"attention_dropout", 0.0},
                 {"hidden_act", "silu"},
                 {"sliding_window", 4096},
                 {"use_sliding_window", false},
                 {"rope_scaling", nullptr},
                 {"head_dim", nullptr},
                 {"pretraining_tp", 2},
                 {"quantization_config", nullptr},
                 {"pad_token_id", -1}});
  EXPECT_EQ(error_of(object), "");
  EXPECT_TRUE(parse_decoder_config(object, "test").warnings.empty());
}

TEST(DecoderConfig, OtherFamiliesAreRefusedWithTheSupportedOnes) {
  for (const char* type : {"deepseek_v3", "qwen2_moe", "gemma", "gpt2"}) {
    const std::string message = error_of(with(llama(), "model_type", type));
    EXPECT_NE(message.find(type), std::string::npos);
    EXPECT_NE(message.find("llama, smollm3, mistral, qwen2, qwen3, mixtral, qwen3_moe, deepseek_v2"), std::string::npos)
        << message;
  }
  EXPECT_THROW(family_config("gpt2"), io::Error);
}

json of_family(const char* type, const char* architecture) {
  json object = with(llama(), "model_type", type);
  object["architectures"] = {architecture};
  object.erase("rope_theta");
  object["num_key_value_heads"] = 2;
  return object;
}

json mistral() { return of_family("mistral", "MistralForCausalLM"); }
json qwen2() { return of_family("qwen2", "Qwen2ForCausalLM"); }
json qwen3() { return of_family("qwen3", "Qwen3ForCausalLM"); }

TEST(DecoderConfig, WhatEachFamilyBrings) {
  const DecoderConfig with_window = parse_decoder_config(mistral(), "test");
  EXPECT_EQ(with_window.sliding_window, 4096);
  EXPECT_EQ(with_window.window(2), 4096);
  EXPECT_EQ(with_window.attention_bias, AttentionBias::kNone);
  EXPECT_EQ(with_window.rope.theta, 1e4);
  const DecoderConfig with_bias = parse_decoder_config(qwen2(), "test");
  EXPECT_EQ(with_bias.attention_bias, AttentionBias::kInputs);
  EXPECT_EQ(with_bias.sliding_window, 0);
  const DecoderConfig with_norms = parse_decoder_config(qwen3(), "test");
  EXPECT_TRUE(with_norms.has_qk_norm);
  EXPECT_EQ(with_norms.head_dim, 128);
  EXPECT_EQ(parse_decoder_config(with(qwen3(), "head_dim", nullptr), "test").head_dim, 8);
  // A null says "as many as query heads"; an absent key means what the family is published with.
  EXPECT_EQ(parse_decoder_config(with(mistral(), "num_key_value_heads", nullptr), "test").num_key_value_heads, 4);
  EXPECT_EQ(parse_decoder_config(with(llama(), "attention_bias", true), "test").attention_bias,
            AttentionBias::kInputsAndOutput);
  for (const json& object : {mistral(), qwen2(), qwen3(), with(qwen3(), "attention_bias", true)}) {
    const json written = to_hugging_face(parse_decoder_config(object, "test"));
    EXPECT_EQ(to_hugging_face(parse_decoder_config(written, "test")), written);
    EXPECT_TRUE(parse_decoder_config(written, "test").warnings.empty());
  }
}

TEST(DecoderConfig, SlidingWindows) {
  const auto windows = [](const json& object) {
    const DecoderConfig config = parse_decoder_config(object, "test");
    return std::vector<int64_t>{config.window(0), config.window(1), config.window(2)};
  };
  using Windows = std::vector<int64_t>;
  EXPECT_EQ(windows(with(mistral(), "sliding_window", 9)), (Windows{9, 9, 9}));
  EXPECT_EQ(windows(with(mistral(), "sliding_window", nullptr)), (Windows{0, 0, 0}));
  EXPECT_EQ(windows(with(qwen2(), "sliding_window", 9)), (Windows{0, 0, 0}));
  json object = with(qwen2(), "sliding_window", 9);
  object["use_sliding_window"] = true;
  EXPECT_EQ(windows(object), (Windows{0, 0, 0}));  // max_window_layers is 28
  object["max_window_layers"] = 1;
  EXPECT_EQ(windows(object), (Windows{0, 9, 9}));
  const json written = to_hugging_face(parse_decoder_config(object, "test"));
  EXPECT_EQ(windows(written), (Windows{0, 9, 9}));
  object["layer_types"] = {"sliding_attention", "full_attention", "full_attention"};
  EXPECT_EQ(windows(object), (Windows{9, 0, 0}));
  // SmolLM3: layers without rotary embedding.
  object = of_family("smollm3", "SmolLM3ForCausalLM");
  object.update({{"sliding_window", 9}, {"use_sliding_window", true}, {"no_rope_layer_interval", 2}});
  EXPECT_EQ(windows(object), (Windows{0, 9, 0}));
}

TEST(DecoderConfig, RefusesWindowsThatContradictThemselves) {
  const std::vector<std::pair<json, const char*>> cases = {
      {with(mistral(), "use_sliding_window", false), "use_sliding_window"},
      {with(mistral(), "sliding_window", 0), "sliding_window"},
      {with(mistral(), "sliding_window", "wide"), "sliding_window"},
      {with(mistral(), "layer_types", {"full_attention", "full_attention", "full_attention"}), "layer_types"},
      {with(qwen2(), "layer_types", {"sliding_attention", "full_attention", "full_attention"}), "layer_types"},
      {with(qwen2(), "attention_bias", false), "attention_bias"},
      {with(mistral(), "attention_bias", true), "attention_bias"},
      {with(qwen3(), "use_sliding_window", 1), "use_sliding_window"}};
  for (const auto& [object, key] : cases) {
    const std::string message = error_of(object);
    EXPECT_NE(message.find(key), std::string::npos) << object << ": " << message;
  }
  json object = with(qwen2(), "use_sliding_window", true);
  object["layer_types"] = {"sliding_attention"};
  EXPECT_NE(error_of(object).find("layer_types"), std::string::npos);
  DecoderConfig config = parse_decoder_config(llama(), "test");
  config.sliding_window = 5;
  EXPECT_THROW(to_hugging_face(config), io::Error);
}

TEST(DecoderConfig, OneTableListsAllObjections) {
  json object = llama();
  object.update({{"mlp_bias", true}, {"hidden_act", "relu"}, {"rope_scaling", {{"type", "yarn"}}}});
  object.erase("vocab_size");
  const std::string message = error_of(object);
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 5);
  for (const char* text : {"mlp_bias", "\"relu\"", "rope_scaling.type", "(absent)"})
    EXPECT_NE(message.find(text), std::string::npos) << message;
}

TEST(DecoderConfig, UnknownKeysAreToldAndNotFatal) {
  const DecoderConfig config = parse_decoder_config(with(llama(), "shiny_new_option", 3), "test");
  ASSERT_EQ(config.warnings.size(), 1u);
  EXPECT_NE(config.warnings[0].find("shiny_new_option"), std::string::npos);
}

TEST(DecoderConfig, RefusesOtherJson) {
  for (const json& value : {json(nullptr), json(3), json::array({1})}) EXPECT_NE(error_of(value), "");
  EXPECT_NE(error_of(json::object()).find("num_attention_heads"), std::string::npos);
}

// Numbers of Hugging Face's own model, and of its published formula.
TEST(DecoderConfig, CountsParametersAndFlops) {
  DecoderConfig config;
  config.model_type = "smollm3";
  config.vocab_size = 128256;
  config.hidden_size = 2048;
  config.intermediate_size = 11008;
  config.num_hidden_layers = 36;
  config.num_attention_heads = 16;
  config.num_key_value_heads = 4;
  config.head_dim = 128;
  config.tie_word_embeddings = true;
  EXPECT_EQ(num_parameters(config), 3075098624);
  EXPECT_NEAR(flops_per_token(config, 8192) / 1e9, 22.074, 1e-3);
  EXPECT_NEAR(flops_per_token(config, 2048) / 1e9, 19.356, 1e-3);
  // With a window of 3 the tokens of a sequence of 5 see 1, 2, 3, 3 and 3 tokens; without, 1 to 5.
  const double full = flops_per_token(config, 5);
  config.sliding_window = 3;
  EXPECT_NEAR(full - flops_per_token(config, 5), 12.0 * 36 * (15.0 / 5 - 12.0 / 5) * 2048, 1);
}

}  // namespace
}  // namespace fsdp::models::decoder_config_test
