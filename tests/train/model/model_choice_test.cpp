#include "train/model/model_choice.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "fsdp/base/error.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::train {
namespace {

std::string error_of(const ModelConfig& config) {
  try {
    choose_model(config, /*data_vocab_size=*/259, /*data_eos_id=*/257);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_EQ(std::string(error.what()).find("\n "), std::string(error.what()).find('\n')) << error.what();
    return error.what();
  }
  return "no error";
}

void expect_says(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(ModelChoice, PresetsNeedNoFile) {
  ModelConfig config;
  config.preset = "qwen3-0.6b";
  const ModelChoice choice = choose_model(config, 259, 257);
  EXPECT_FALSE(choice.weights.has_value());
  EXPECT_EQ(models::num_parameters(choice.config), 596049920);
  EXPECT_EQ(size_text(choice.config), "596.0M parameters, 1.11 GiB in bf16, 2.22 GiB in fp32");
}

TEST(ModelChoice, UnknownPresetsNameTheNearest) {
  ModelConfig config;
  for (const auto& [given, nearest] :
       {std::pair("smollm3", "smollm3-3b"), std::pair("llama-3.1-7b", "llama-3.1-8b"),
        std::pair("Qwen3-0.6B", "qwen3-0.6b"), std::pair("mistral-7b", "mistral-7b-v0.1")}) {
    config.preset = given;
    expect_says(error_of(config), std::string("did you mean ") + nearest + "?");
  }
  config.preset = "opt-66b";
  expect_says(error_of(config), "unknown preset 'opt-66b'. `fsdp inspect --presets` lists them.");
}

TEST(ModelChoice, APresetStandsAlone) {
  ModelConfig config;
  config.preset = "smollm2-135m";
  config.layers = 4;
  expect_says(error_of(config), "model.layers: got 4 with model.preset");
  config = {};
  config.preset = "smollm2-135m";
  config.path = "somewhere";
  expect_says(error_of(config), "got both model.path and model.preset");
  config.path = "";
  config.weights = "load";
  expect_says(error_of(config), "got load with model.preset, expected random or auto");
}

// A key that the model of the folder would not follow is refused, and one that says what it has anyway is not.
TEST(ModelChoice, AFolderSaysWhatItsModelIs) {
  const io::TemporaryFolder folder;
  ModelConfig made;
  made.layers = 3;
  made.nope_interval = 2;
  made.rope_theta = 12345;
  made.tie_embeddings = false;
  const models::DecoderConfig model = choose_model(made, 259, 257).config;
  io::write_text(folder / "config.json", models::to_hugging_face(model).dump());

  ModelConfig config;
  config.path = folder.path();
  EXPECT_EQ(choose_model(config, 259, 257).config.rope.theta, 12345);
  config = made;
  for (const std::filesystem::path& path : {folder.path(), folder / "config.json"}) {
    config.path = path;
    config.weights = "random";
    EXPECT_EQ(choose_model(config, 259, 257).config.num_hidden_layers, 3);
  }

  const auto expect_refusal = [&](void (*change)(ModelConfig&), const std::string& part) {
    ModelConfig other;
    other.path = folder.path();
    change(other);
    const std::string message = error_of(other);
    expect_says(message, part);
    expect_says(message, "change that file");
    expect_says(message, "config.json");
  };
  expect_refusal([](ModelConfig& other) { other.rope_theta = 54321; },
                 "model.rope_theta: got 54321.0 with model.path, expected 12345.0");
  expect_refusal([](ModelConfig& other) { other.layers = 4; }, "model.layers: got 4 with model.path, expected 3");
  expect_refusal([](ModelConfig& other) { other.nope_interval = 3; },
                 "model.nope_interval: got 3 with model.path, expected 2");
  expect_refusal([](ModelConfig& other) { other.family = "qwen3"; }, "model.family: got \"qwen3\" with model.path");
  expect_refusal([](ModelConfig& other) { other.vocab_size = 300; }, "model.vocab_size: got 300 with model.path");
  expect_refusal([](ModelConfig& other) { other.balance_loss = 0.1; }, "model.balance_loss: got 0.1 with model.path");
}

TEST(ModelChoice, MakesEveryFamily) {
  for (const std::string& family : models::model_types()) {
    if (family == "deepseek_v2") continue;  // of folders and presets only: model.family does not take it
    ModelConfig config;
    config.family = family;
    config.head_dim = 20;
    config.sliding_window = family == "llama" ? 0 : 64;
    const models::DecoderConfig made = choose_model(config, 259, 257).config;
    EXPECT_EQ(made.model_type, family);
    EXPECT_EQ(made.head_dim, 20);
    EXPECT_EQ(made.window(0), config.sliding_window);
    EXPECT_EQ(made.vocab_size, 259);
    EXPECT_EQ(made.eos_token_ids, std::vector<int64_t>{257});
    EXPECT_EQ(made.has_qk_norm, family == "qwen3" || family == "qwen3_moe");
    EXPECT_EQ(made.attention_bias == models::AttentionBias::kInputs, family == "qwen2");
  }
}

TEST(ModelChoice, RefusesSizesThatMakeNoModel) {
  ModelConfig config;
  config.kv_heads = 3;
  expect_says(error_of(config), "num_key_value_heads");
  config = {};
  config.head_dim = 7;
  expect_says(error_of(config), "head_dim");
  config = {};
  config.family = "llama";
  config.sliding_window = 8;
  expect_says(error_of(config), "Choose mistral");
}

}  // namespace
}  // namespace fsdp::train
