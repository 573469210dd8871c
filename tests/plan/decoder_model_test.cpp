// The planner's parameters are those that the real modules register, name by name.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "models/config/presets.h"
#include "models/decoder.h"
#include "plan/model.h"

namespace fsdp::plan::decoder_model_test {
namespace {

using Named = std::vector<std::pair<std::string, std::vector<int64_t>>>;

Named named(const PlannedUnit& unit) {
  Named list;
  for (const PlannedParameter& parameter : unit.parameters) list.emplace_back(parameter.name, parameter.shape);
  return list;
}

Named registered(const torch::nn::Module& module, const std::string& prefix, bool with_blocks) {
  Named list;
  for (const auto& item : module.named_parameters()) {
    const std::string name = prefix + item.key();
    if (!with_blocks && name.find(".layers.") != std::string::npos) continue;
    list.emplace_back(name, item.value().sizes().vec());
  }
  return list;
}

void expect_same(const models::DecoderConfig& config, const std::string& what) {
  SCOPED_TRACE(what);
  const models::Decoder decoder(config, at::TensorOptions().device(at::kMeta));
  const PlannedModel model = decoder_model(what, config);
  ASSERT_EQ(model.blocks.size(), decoder->layers()->size());
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    EXPECT_EQ(named(model.blocks[i]), registered(*decoder->layers()->ptr(i), model.blocks[i].name + ".", true));
  }
  EXPECT_EQ(named(model.root), registered(*decoder, "", false));
  EXPECT_EQ(model.num_parameters(), models::num_parameters(config));
}

TEST(PlannedDecoder, HasTheParametersOfTheModules) {
  for (const models::Preset& preset : models::presets()) expect_same(preset.config, preset.name);
  models::DecoderConfig biased = models::find_preset("llama-3.2-1b")->config;
  biased.attention_bias = models::AttentionBias::kInputsAndOutput;
  expect_same(biased, "with biases everywhere");
}

}  // namespace
}  // namespace fsdp::plan::decoder_model_test
