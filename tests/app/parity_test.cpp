// `fsdp parity` against the golden files, sharded over several ranks.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "io/base/json.h"
#include "tests/app/training_fixture.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace fsdp::app {
namespace {

namespace fs = std::filesystem;

// "root/smollm3-mini": models and curves of one name.
struct Golden {
  fs::path model;
  fs::path curve;
};

std::vector<Golden> golden_sets() {
  std::vector<Golden> sets;
  for (const fs::path& root : {fs::path(FSDP_TEST_DATA_DIR), fs::path(FSDP_FIXTURES_DIR)}) {
    for (const char* name : {"smollm3-mini", "llama3-mini", "smollm3-tiny", "llama3-tiny"}) {
      if (fs::exists(root / "curves" / name / "curve.json")) {
        sets.push_back({root / "models" / name, root / "curves" / name});
      }
    }
  }
  return sets;
}

class Parity : public testing::TestWithParam<int> {};

void expect_parity(int ranks, const std::string& arguments) {
  const CommandResult result =
      run_fsdp("launch --no-prefix --nproc " + std::to_string(ranks) + " -- parity " + arguments + " --json");
  EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.out << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_TRUE(json.at("passed")) << result.out;
  EXPECT_FALSE(json.at("reports").empty());
}

TEST_P(Parity, LogitsLossGradientsAndCurve) {
  const auto sets = golden_sets();
  ASSERT_GE(sets.size(), 2u);
  for (const Golden& golden : sets) {
    const std::string model = golden.model.string();
    expect_parity(GetParam(), model + " --expected " + model + "/expected.safetensors --packed " + model +
                                  "/packed.safetensors --curve " + golden.curve.string());
  }
}

// Against the fp32 values, a batch each. Shapes of fp8 are multiples of 16, which no model of tests/data has.
TEST(ParityOfPrecisions, AreTold) {
  const std::string model = (fs::path(FSDP_TEST_DATA_DIR) / "models" / "llama3-mini").string();
  for (const char* precision : {"fp16", "o1"}) expect_parity(2, model + " --precision " + precision);
  const fs::path even = fs::path(FSDP_FIXTURES_DIR) / "models" / "llama2-tiny";
  if (fs::exists(even)) {
    for (const char* options : {"", " --fp8-recipe tensorwise", " --fp8-keep first,down_proj"})
      expect_parity(2, even.string() + " --precision fp8" + options);
  }
  const auto refusal = [&](const std::string& arguments) { return run_fsdp("parity " + model + arguments).err; };
  for (const auto& [arguments, words] :
       {std::pair{" --precision o3", "--precision: got precision o3, expected fp32, bf16, fp16, o1 or fp8"},
        {" --precision fp8 --curve .", "--curve: got precision fp8, expected fp32 or bf16"},
        {" --precision fp8", "needs multiples of 16, and model.layers.0.self_attn.q_proj of 42 x 21"}})
    EXPECT_NE(refusal(arguments).find(words), std::string::npos) << refusal(arguments);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Parity, testing::Values(1, 2, 3, 4));

class ParityOfFamilies : public testing::TestWithParam<int> {};

// With packed documents where the set has them.
TEST_P(ParityOfFamilies, LogitsLossAndGradients) {
  std::set<std::string> types;
  for (const fs::path& root : {fs::path(FSDP_TEST_DATA_DIR), fs::path(FSDP_FIXTURES_DIR)}) {
    if (!fs::exists(root / "models")) continue;
    for (const auto& folder : fs::directory_iterator(root / "models")) {
      if (!fs::exists(folder.path() / "expected.safetensors")) continue;
      expect_parity(GetParam(), folder.path().string());
      types.insert(io::read_json_file(folder.path() / "config.json").at("model_type"));
    }
  }
  EXPECT_EQ(types, (std::set<std::string>{"deepseek_v2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe",
                                          "smollm3"}));
}

INSTANTIATE_TEST_SUITE_P(Ranks, ParityOfFamilies, testing::Values(1, 3));

// The bf16 curves are given for equal parts of the batch.
class ParityInBf16 : public testing::TestWithParam<int> {};

TEST_P(ParityInBf16, Curve) {
  for (const Golden& golden : golden_sets()) {
    expect_parity(GetParam(), golden.model.string() + " --precision bf16 --curve " + golden.curve.string());
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ParityInBf16, testing::Values(1, 2, 4));

TEST(ParityVerb, EveryStrategyAndAccumulation) {
  const Golden golden = golden_sets().front();
  for (const char* strategy : {"no_shard", "optim", "optim_grads", "optim_grads_params"}) {
    expect_parity(
        2, golden.model.string() + " --curve " + golden.curve.string() + " --microbatches 2 --strategy " + strategy);
  }
}

TEST(ParityVerb, HybridStrategiesOnTwoAxes) {
  const Golden golden = golden_sets().front();
  for (const char* strategy : {"hybrid", "hybrid_zero2", "hybrid_optim"}) {
    expect_parity(4, golden.model.string() + " --curve " + golden.curve.string() +
                         " --microbatches 2 --replicas 2 --strategy " + strategy);
  }
  const CommandResult result = launch_fsdp(2, "parity " + golden.model.string() + " --replicas 3");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(contains(result.err, "replicas: got 3 for 2 ranks")) << result.err;
}

TEST(ParityVerb, SeesADifference) {
  const Golden golden = golden_sets().front();
  const CommandResult result = run_fsdp("parity " + golden.model.string() + " --tolerance-factor 1e-9");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(contains(result.out, "ABOVE")) << result.out;
  EXPECT_TRUE(contains(result.out, "NOT within tolerance")) << result.out;
}

TEST(ParityVerb, FilesOfAnotherModelAreRefused) {
  const auto sets = golden_sets();
  const CommandResult result = launch_fsdp(
      2, "parity " + sets[0].model.string() + " --expected " + sets[1].model.string() + "/expected.safetensors");
  EXPECT_EQ(result.exit_code, 4) << result.out << result.err;
  EXPECT_TRUE(contains(result.err, "belongs to another model")) << result.err;
}

TEST(ParityVerb, OfATokenizer) {
  const io::TemporaryFolder folder;
  const std::string parity = "parity --tokenizer " + folder.path().string();
  io::write_text(folder / "fsdp_tokenizer.json", train::byte_tokenizer::marker_json());
  const std::string one = R"([{"kind": "short", "text": "a", "ids": [97], "ids_special": [256, 97], "decoded": "a"})";
  io::write_text(folder / "cases.json", one + "]");
  CommandResult result = run_fsdp(parity);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_TRUE(contains(result.out, "passed: 1 cases, 0 different")) << result.out;
  io::write_text(folder / "other.json",
                 one + R"(, {"kind": "b", "text": "b", "ids": [97], "ids_special": [], "decoded": ""}])");
  result = run_fsdp(parity + " --cases " + (folder / "other.json").string());
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  EXPECT_TRUE(contains(result.out, "case 1 ('b') 'b': ids: got [98] at 0, expected [97]")) << result.out;
  EXPECT_EQ(nlohmann::json::parse(run_fsdp(parity + " --json").out).at("kinds").at("short").at("cases"), 1);
  EXPECT_EQ(run_fsdp("parity").exit_code, 2);
  EXPECT_EQ(run_fsdp(parity + " --cases none.json").exit_code, 3);
  EXPECT_EQ(run_fsdp("parity --tokenizer none").exit_code, 4);
}

}  // namespace
}  // namespace fsdp::app
