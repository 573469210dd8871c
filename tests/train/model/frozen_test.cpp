#include "train/model/frozen.h"

#include <gtest/gtest.h>

#include "fsdp/base/error.h"

namespace fsdp::train {
namespace {

using Names = std::vector<std::string>;

const Names kNames = {
    "model.embed_tokens.weight",          "model.layers.0.mlp.up_proj.weight",      "model.layers.1.mlp.up_proj.weight",
    "model.layers.10.mlp.up_proj.weight", "model.layers.10.input_layernorm.weight", "model.norm.weight"};

TuneConfig config(const std::string& frozen, const std::string& trained = "") {
  TuneConfig tune;
  tune.frozen = frozen;
  tune.trained = trained;
  return tune;
}

std::string refusal(const TuneConfig& tune) {
  try {
    choose_frozen(tune, kNames);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  return "";
}

TEST(Frozen, PatternsOfNames) {
  EXPECT_EQ(choose_frozen(config("model.embed_tokens.*"), kNames), Names{kNames[0]});
  EXPECT_EQ(choose_frozen(config("model.layers.[0-3].*"), kNames), (Names{kNames[1], kNames[2]}));
  EXPECT_EQ(choose_frozen(config("model.layers.1?.*,model.norm.weight"), kNames),
            (Names{kNames[3], kNames[4], kNames[5]}));
  EXPECT_EQ(choose_frozen(config("*norm.weight"), kNames), (Names{kNames[4], kNames[5]}));
}

TEST(Frozen, TrainedAloneAndWithFrozen) {
  EXPECT_EQ(choose_frozen(config("", "*norm.weight"), kNames), (Names{kNames[0], kNames[1], kNames[2], kNames[3]}));
  EXPECT_EQ(choose_frozen(config("model.layers.10.*", " *.mlp.* "), kNames),
            (Names{kNames[0], kNames[3], kNames[4], kNames[5]}));
}

TEST(Frozen, PatternThatMatchesNothingNamesNearOnes) {
  const std::string text = refusal(config("model.layer.0.*"));
  EXPECT_NE(text.find("tune.frozen: got 'model.layer.0.*'"), std::string::npos) << text;
  EXPECT_NE(text.find("near names: model.layers.0.mlp.up_proj.weight, "), std::string::npos) << text;
  EXPECT_NE(refusal(config("", "lm_head.weight")).find("tune.trained: got 'lm_head.weight'"), std::string::npos);
  EXPECT_NE(refusal(config("model.layers.[0-")).find("matches no parameter"), std::string::npos);
}

TEST(Frozen, SomethingMustTrain) {
  EXPECT_NE(refusal(config("*")).find("leave none of 6 parameters"), std::string::npos);
  EXPECT_NE(refusal(config("model.norm.*", "model.norm.*")).find("leave none"), std::string::npos);
}

TEST(Frozen, ListsHaveBlanksAndEmptyParts) {
  EXPECT_EQ(split_list(" a, ,b\t,"), (Names{"a", "b"}));
  EXPECT_EQ(split_list(""), Names{});
}

}  // namespace
}  // namespace fsdp::train
