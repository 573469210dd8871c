// Folders of Hugging Face in fp8: what is written against the format's definition in fp64, and back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "io/base/json.h"
#include "io/hub/model_folder.h"
#include "io/safetensors/safetensors.h"
#include "tests/app/training_fixture.h"

namespace fsdp::app {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kRows = 130, kColumns = 300;  // neither comes out even on 128
constexpr const char* kName = "model.layers.0.mlp.up_proj.weight";

class Fp8Export : public TrainingFixture {
 protected:
  // One linear layer, an embedding and a norm, in fp32.
  void write_model(const std::string& name, const std::vector<float>& weight) const {
    fs::create_directories(path(name));
    io::SafetensorsWriter writer(path(name) + "/model.safetensors",
                                 {{kName, io::DType::F32, {kRows, kColumns}},
                                  {"model.embed_tokens.weight", io::DType::F32, {2, 2}},
                                  {"model.norm.weight", io::DType::F32, {2}}});
    const std::vector<float> other = {1, 2, 3, 4};
    writer.write(kName, 0, kRows * kColumns, weight.data());
    writer.write("model.embed_tokens.weight", 0, 4, other.data());
    writer.write("model.norm.weight", 0, 2, other.data());
    writer.commit();
    std::ofstream(path(name) + "/config.json") << R"({"model_type": "llama", "dtype": "float32"})";
  }

  template <class T>
  std::vector<T> read(const std::string& folder, const std::string& name, int64_t count) const {
    const io::ModelFolder model = io::ModelFolder::open(path(folder));
    std::vector<T> numbers(static_cast<size_t>(count));
    model.read(name, 0, count, numbers.data());
    return numbers;
  }
};

// To the nearest number of e4m3, ties to an even mantissa, by its definition.
double nearest_e4m3(double x) {
  const double step = std::exp2(std::max(x == 0 ? -6 : std::ilogb(x), -6) - 3);
  return std::nearbyint(x / step) * step;
}

TEST_F(Fp8Export, HasTheNumbersOfTheDefinitionAndComesBack) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 engine(seed);
  std::vector<float> weight(kRows * kColumns);
  for (float& x : weight) x = std::ldexp(static_cast<float>(engine()) * 0x1p-31f - 1, -static_cast<int>(engine() % 12));
  for (int64_t row = 0; row < 128; ++row)
    std::fill_n(weight.begin() + row * kColumns + 128, 128, 0.0f);  // a whole block
  write_model("model", weight);
  ASSERT_EQ(run_fsdp("export " + path("model") + " --dtype=fp8 --to " + path("fp8")).exit_code, 0);

  const nlohmann::json config = io::read_json_file(path("fp8") + "/config.json", {.kind = io::ErrorKind::kModel});
  const nlohmann::json& said = config.at("quantization_config");
  EXPECT_EQ(said.at("quant_method"), "fp8");
  EXPECT_EQ(said.at("fmt"), "e4m3");
  EXPECT_EQ(said.at("weight_block_size"), nlohmann::json({128, 128}));
  EXPECT_EQ(said.at("modules_to_not_convert"), nlohmann::json({"model.embed_tokens"}));
  EXPECT_EQ(config.at("dtype"), "bfloat16");
  const auto scales = read<float>("fp8", std::string(kName) + "_scale_inv", 2 * 3);

  ASSERT_EQ(run_fsdp("import " + path("fp8") + " --dtype=fp32 --out " + path("back")).exit_code, 0);
  const auto back = read<float>("back", kName, kRows * kColumns);
  for (int64_t block = 0; block < 6; ++block) {
    double largest = 0;
    const auto for_each = [&](const auto& body) {
      for (int64_t r = block / 3 * 128; r < std::min(kRows, block / 3 * 128 + 128); ++r)
        for (int64_t c = block % 3 * 128; c < std::min(kColumns, block % 3 * 128 + 128); ++c)
          body(static_cast<size_t>(r * kColumns + c));
    };
    for_each([&](size_t i) { largest = std::max(largest, std::abs(static_cast<double>(weight[i]))); });
    const double scale = largest == 0 ? 1 : std::exp2(std::ceil(std::log2(largest / 448)));
    ASSERT_EQ(static_cast<double>(scales[static_cast<size_t>(block)]), scale) << block;
    for_each([&](size_t i) { ASSERT_EQ(back[i], nearest_e4m3(weight[i] / scale) * scale) << i; });
  }
  ASSERT_EQ(run_fsdp("export " + path("back") + " --dtype=fp8 --to " + path("again")).exit_code, 0);
  ASSERT_EQ(run_fsdp("import " + path("again") + " --dtype=fp32 --out " + path("numbers")).exit_code, 0);
  EXPECT_EQ(read<float>("numbers", kName, kRows * kColumns), back);
  EXPECT_FALSE(io::read_json_file(path("back") + "/config.json", {.kind = io::ErrorKind::kModel})
                   .contains("quantization_config"));
  EXPECT_EQ((read<float>("back", "model.norm.weight", 2)), (std::vector<float>{1, 2}));
}

TEST_F(Fp8Export, RefusesWhatItCannotRoundByName) {
  std::vector<float> weight(kRows * kColumns, 1.0f);
  weight[777] = NAN;
  write_model("nan", weight);
  const CommandResult broken = run_fsdp("export " + path("nan") + " --dtype=fp8 --to " + path("out"));
  EXPECT_NE(broken.exit_code, 0);
  EXPECT_TRUE(contains(broken.err, std::string(kName) + "': got a number that is not finite")) << broken.err;
  weight[777] = 1;
  write_model("model", weight);
  const std::string command = "export " + path("model") + " --dtype=fp8 --to " + path("fp8");
  EXPECT_EQ(run_fsdp(command + " --format=dcp").exit_code, 2);
  ASSERT_EQ(run_fsdp(command).exit_code, 0);
  const CommandResult twice = run_fsdp("export " + path("fp8") + " --dtype=fp8 --to " + path("twice"));
  EXPECT_TRUE(contains(twice.err, "got F8_E4M3, expected BF16, F16 or F32")) << twice.err;
}

TEST_F(Fp8Export, ScalesThatAreMissingOrOfAnotherSizeAreNamed) {
  fs::create_directories(path("bare"));
  io::SafetensorsWriter writer(path("bare") + "/model.safetensors", {{kName, io::DType::F8_E4M3, {2, 2}}});
  writer.write(kName, 0, 4, "\x38\x38\x38\x38");
  writer.commit();
  const auto error_with = [&](const std::string& block) {
    std::ofstream(path("bare") + "/config.json")
        << R"({"quantization_config": {"weight_block_size": )" << block << "}}";
    return run_fsdp("import " + path("bare") + " --out " + path("out")).err;
  };
  const std::string missing = error_with("[128, 128]"), other = error_with("[64, 64]");
  EXPECT_TRUE(contains(missing, "got no tensor '" + std::string(kName) + "_scale_inv' beside it")) << missing;
  EXPECT_TRUE(contains(other, "without weight_block_size [128, 128]")) << other;
}

}  // namespace
}  // namespace fsdp::app
