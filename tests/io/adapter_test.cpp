#include "io/weights/adapter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "io/base/element_cast.h"
#include "io/base/json.h"
#include "io/hub/model_folder.h"
#include "io/weights/merged_source.h"
#include "io/weights/open_weights.h"
#include "io/weights/weights_copy.h"
#include "tests/io/temporary_folder.h"
#include "tests/support/usage.h"

namespace fsdp::io {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// As peft 0.21 writes it.
json peft_config() {
  return json::parse(R"({"alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null,
    "auto_mapping": null, "base_model_name_or_path": "base", "bias": "none", "corda_config": null,
    "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false,
    "inference_mode": true, "init_lora_weights": true, "layer_replication": null, "layers_pattern": null,
    "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 6, "lora_bias": false, "lora_dropout": 0.1,
    "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null, "peft_type": "LORA",
    "peft_version": "0.21.2", "qalora_group_size": 16, "r": 2, "rank_pattern": {}, "revision": null,
    "target_modules": ["v_proj", "q_proj"], "target_parameters": null, "task_type": "CAUSAL_LM",
    "trainable_token_indices": null, "use_dora": false, "use_qalora": false, "use_rslora": false})");
}

std::string refusal(const json& config) {
  try {
    parse_adapter_config(config, "here");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kModel);
    return error.what();
  }
  return "";
}

TEST(AdapterConfig, ReadsWhatPeftWrites) {
  const AdapterConfig config = parse_adapter_config(peft_config(), "here");
  EXPECT_EQ(config.rank, 2);
  EXPECT_EQ(config.alpha, 6);
  EXPECT_EQ(config.dropout, 0.1);
  EXPECT_EQ(config.targets, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(config.base_model, "base");
  EXPECT_EQ(config.scale(), 3);
  json root = peft_config();
  root["use_rslora"] = true;
  EXPECT_DOUBLE_EQ(parse_adapter_config(root, "here").scale(), 6 / std::sqrt(2.0));
}

TEST(AdapterConfig, WritesWhatItReads) {
  const AdapterConfig config{4, 2.5, 0.05, {"down_proj", "q_proj"}, "some/where"};
  const AdapterConfig again = parse_adapter_config(to_peft(config), "here");
  EXPECT_EQ(to_peft(again), to_peft(config));
  EXPECT_EQ(again.scale(), 2.5 / 4);
}

TEST(AdapterConfig, RefusesWhatWouldComputeSomethingElse) {
  const std::pair<const char*, json> changes[] = {
      {"peft_type", "IA3"},
      {"r", 0},
      {"r", "2"},
      {"r", uint64_t{1} << 63},
      {"bias", "all"},
      {"use_dora", "yes"},
      {"lora_bias", true},
      {"rank_pattern", {{"q_proj", 4}}},
      {"alpha_pattern", {{"q", 4}}},
      {"modules_to_save", {"lm_head"}},
      {"fan_in_fan_out", true},
      {"init_lora_weights", "olora"},
      {"lora_alpha", "many"},
      {"something_new", 3},
  };
  for (const auto& [key, value] : changes) {
    json config = peft_config();
    config[key] = value;
    EXPECT_NE(refusal(config).find(std::string("here: '") + key + "': got "), std::string::npos) << key;
  }
  json two = peft_config();
  two["use_dora"] = 1;
  two["bias"] = "all";
  EXPECT_NE(refusal(two).find("'bias'"), std::string::npos);
  EXPECT_NE(refusal(two).find("'use_dora'"), std::string::npos);
  EXPECT_NE(refusal(json::array()).find("expected a JSON object"), std::string::npos);
}

// A base of two matrices and a vector, and an adapter on one of them. Sizes are such that pieces end inside rows.
class AdapterFiles : public testing::Test {
 protected:
  static constexpr int64_t kOut = 5, kIn = 7, kRank = 2;

  void SetUp() override {
    RecordProperty("seed", 5);
    fs::create_directories(folder_ / "base");
    fs::create_directories(folder_ / "adapter");
    weight_ = random(kOut * kIn);
    a_ = random(kRank * kIn);
    b_ = random(kOut * kRank);
    write_base(DType::F32);
    write_adapter({{"lora_A", {kRank, kIn}, a_}, {"lora_B", {kOut, kRank}, b_}});
    write_text(folder_ / "adapter/adapter_config.json", peft_config().dump());
  }

  std::vector<float> random(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random_);
    return values;
  }

  void write_base(DType dtype) {
    std::vector<char> stored(weight_.size() * item_size(dtype));
    cast_elements(DType::F32, weight_.data(), dtype, stored.data(), kOut * kIn);
    const float norm[] = {1, 2, 3};
    SafetensorsWriter writer(folder_ / "base/model.safetensors", {{"x.q_proj.weight", dtype, {kOut, kIn}},
                                                                  {"x.k_proj.weight", dtype, {kOut, kIn}},
                                                                  {"norm.weight", DType::F32, {3}}});
    writer.write("x.q_proj.weight", 0, kOut * kIn, stored.data());
    writer.write("x.k_proj.weight", 0, kOut * kIn, stored.data());
    writer.write("norm.weight", 0, 3, norm);
    writer.commit();
    write_text(folder_ / "base/config.json", R"({"model_type": "llama"})");
  }

  struct Factor {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  static std::string stored(const std::string& factor) {
    return factor == "lora_magnitude_vector" ? factor : factor + ".weight";
  }
  void write_adapter(const std::vector<Factor>& factors, const std::string& module = "x.q_proj") {
    std::vector<TensorDeclaration> tensors;
    const std::string prefix = "base_model.model." + module + ".";
    for (const Factor& factor : factors) tensors.push_back({prefix + stored(factor.name), DType::F32, factor.shape});
    SafetensorsWriter writer(folder_ / "adapter/adapter_model.safetensors", tensors);
    for (const Factor& factor : factors) {
      writer.write(prefix + stored(factor.name), 0, static_cast<int64_t>(factor.values.size()), factor.values.data());
    }
    writer.commit();
  }

  double expected(int64_t row, int64_t column) const {
    double sum = 0;
    for (int64_t k = 0; k < kRank; ++k) {
      sum += double{b_[static_cast<size_t>(row * kRank + k)]} * a_[static_cast<size_t>(k * kIn + column)];
    }
    return weight_[static_cast<size_t>(row * kIn + column)] + 3 * sum;  // alpha / r = 3
  }

  std::unique_ptr<WeightSource> merge(std::optional<DType> dtype = {}) {
    return open_merged_source(open_weight_source(folder_ / "base"),
                              read_adapter(*open_weight_source(folder_ / "adapter")), dtype);
  }

  std::string merge_refusal() {
    try {
      merge();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
  std::mt19937 random_{5};
  std::vector<float> weight_, a_, b_;
};

TEST_F(AdapterFiles, MergesInto) {
  const auto source = merge();
  write_model_folder(*source, plan_copy(*source, "", {}), {folder_ / "out"}, source->config());
  const ModelFolder out = ModelFolder::open(folder_ / "out");
  EXPECT_EQ(out.names(), (std::vector<std::string>{"norm.weight", "x.k_proj.weight", "x.q_proj.weight"}));
  std::vector<float> merged(kOut * kIn), other(kOut * kIn);
  out.read("x.q_proj.weight", 0, kOut * kIn, merged.data());
  out.read("x.k_proj.weight", 0, kOut * kIn, other.data());
  EXPECT_EQ(other, weight_);
  for (int64_t i = 0; i < kOut * kIn; ++i) {
    EXPECT_NEAR(merged[static_cast<size_t>(i)], expected(i / kIn, i % kIn), 1e-5) << i;
  }
  EXPECT_TRUE(fs::exists(folder_ / "out/config.json"));
}

TEST_F(AdapterFiles, PiecesMayEndInsideRows) {
  const Adapter adapter = read_adapter(*open_weight_source(folder_ / "adapter"));
  const LowRank& factors = adapter.modules.at("x.q_proj");
  std::vector<float> whole = weight_, pieces = weight_;
  add_low_rank(factors, 3, 0, kOut * kIn, whole.data());
  for (const auto& [first, count] : {std::pair{0, 3}, {3, 1}, {4, 20}, {24, 11}}) {
    add_low_rank(factors, 3, first, count, pieces.data() + first);
  }
  EXPECT_EQ(pieces, whole);
}

// m (W + s B A) / |W + s B A|, row by row, wherever pieces end.
TEST_F(AdapterFiles, MergesMagnitudes) {
  json config = peft_config();
  config["use_dora"] = true;
  write_text(folder_ / "adapter/adapter_config.json", config.dump());
  const std::vector<float> lengths = {3, 0.5, 1, 2, 7};
  write_adapter(
      {{"lora_A", {kRank, kIn}, a_}, {"lora_B", {kOut, kRank}, b_}, {"lora_magnitude_vector", {kOut}, lengths}});
  const auto source = merge();
  std::vector<float> merged;
  for (size_t i = 0; i < source->tensors().size(); ++i) {
    if (source->tensors()[i].name != "x.q_proj.weight") continue;
    source->read({i}, [&](size_t, int64_t first, int64_t count, const void* elements) {
      ASSERT_EQ(first, static_cast<int64_t>(merged.size()));
      const auto* values = static_cast<const float*>(elements);
      merged.insert(merged.end(), values, values + count);
    });
  }
  ASSERT_EQ(merged.size(), static_cast<size_t>(kOut * kIn));
  for (int64_t row = 0; row < kOut; ++row) {
    double squares = 0;
    for (int64_t column = 0; column < kIn; ++column) squares += expected(row, column) * expected(row, column);
    for (int64_t column = 0; column < kIn; ++column) {
      EXPECT_NEAR(merged[static_cast<size_t>(row * kIn + column)],
                  lengths[static_cast<size_t>(row)] * expected(row, column) / std::sqrt(squares), 1e-5);
    }
  }
}

// The sum is fp32, and rounded once.
TEST_F(AdapterFiles, RoundsToWhatTheBaseStoresOrIsAskedFor) {
  write_base(DType::BF16);
  std::vector<uint16_t> base(kOut * kIn), stored(kOut * kIn);
  ModelFolder::open(folder_ / "base").read("x.q_proj.weight", 0, kOut * kIn, base.data());
  const Adapter adapter = read_adapter(*open_weight_source(folder_ / "adapter"));
  std::vector<float> exact(kOut * kIn);
  cast_elements(DType::BF16, base.data(), DType::F32, exact.data(), kOut * kIn);
  add_low_rank(adapter.modules.at("x.q_proj"), 3, 0, kOut * kIn, exact.data());
  std::vector<uint16_t> rounded(kOut * kIn);
  cast_elements(DType::F32, exact.data(), DType::BF16, rounded.data(), kOut * kIn);

  const auto keep = merge(), wide = merge(DType::F32);
  const auto read = [](const WeightSource& source, void* out) {
    for (size_t i = 0; i < source.tensors().size(); ++i) {
      if (source.tensors()[i].name != "x.q_proj.weight") continue;
      const size_t item = item_size(*source.tensors()[i].dtype);
      source.read({i}, [&](size_t, int64_t first, int64_t count, const void* elements) {
        std::memcpy(static_cast<char*>(out) + first * item, elements, count * item);
      });
    }
  };
  read(*keep, stored.data());
  EXPECT_EQ(stored, rounded);
  std::vector<float> unrounded(kOut * kIn);
  read(*wide, unrounded.data());
  EXPECT_EQ(unrounded, exact);
}

// A base with one weight for each of many modules.
class ManyWeights : public WeightSource {
 public:
  explicit ManyWeights(int count) : WeightSource("base") {
    for (int i = 0; i < count; ++i) tensors_.push_back({module(i) + ".weight", {1, 1}, DType::F32, "F32"});
  }
  static std::string module(int number) { return "model.layers.x." + std::to_string(1000000 + number); }
  void read(const std::vector<size_t>&, const PieceSink&) const override {}
};

// Without a comparison of each module with each weight.
TEST(Adapter, AModuleWithoutAWeightIsFoundAmongMany) {
  constexpr int kModules = 30000;
  Adapter adapter;
  adapter.config.rank = 1;
  for (int i = 0; i < kModules; ++i) {
    LowRank factors;
    factors.rank = factors.in = factors.out = 1;
    adapter.modules.emplace(ManyWeights::module(i), std::move(factors));
  }
  adapter.modules.emplace("z", LowRank{});
  auto base = std::make_unique<ManyWeights>(kModules);
  Caught caught;
  const double seconds = usage::processor_seconds(
      [&] { caught = catch_error([&] { open_merged_source(std::move(base), std::move(adapter), std::nullopt); }); });
  EXPECT_LT(seconds, 5);
  EXPECT_TRUE(caught.says("got no tensor 'z.weight' for the adapter")) << caught.text;
}

TEST_F(AdapterFiles, RefusesWhatDoesNotFit) {
  write_adapter({{"lora_A", {kRank, kIn}, a_}});
  EXPECT_NE(merge_refusal().find("'x.q_proj': got only one of lora_A and lora_B"), std::string::npos);
  write_adapter({{"lora_A", {kRank, kIn}, a_}, {"lora_B", {kRank, kOut}, b_}});
  EXPECT_NE(merge_refusal().find("the second of them 2, the rank"), std::string::npos) << merge_refusal();
  write_adapter({{"lora_A", {kRank, kIn}, a_}, {"lora_B", {kOut, kRank}, b_}}, "y.q_proj");
  EXPECT_NE(merge_refusal().find("no tensor 'y.q_proj.weight'"), std::string::npos) << merge_refusal();
  EXPECT_NE(merge_refusal().find("which was 'base'"), std::string::npos);
  write_adapter({{"lora_A", {kRank, kOut}, b_}, {"lora_B", {kOut, kRank}, b_}});
  EXPECT_NE(merge_refusal().find("got shape [5, 7], the adapter is for [5, 5]"), std::string::npos) << merge_refusal();
  write_adapter({{"lora_A", {kRank, kIn}, a_}, {"lora_B", {kOut, kRank}, b_}, {"lora_magnitude_vector", {1}, {1}}});
  EXPECT_NE(merge_refusal().find("'x.q_proj': got 1 magnitudes with use_dora = false, expected 0"), std::string::npos)
      << merge_refusal();
  json with_magnitudes = peft_config();
  with_magnitudes["use_dora"] = true;
  write_text(folder_ / "adapter/adapter_config.json", with_magnitudes.dump());
  EXPECT_NE(merge_refusal().find("got 1 magnitudes with use_dora = true, expected 5"), std::string::npos);
  write_adapter({{"lora_A", {kRank, kIn}, a_}, {"lora_B", {kOut, kRank}, b_}});
  EXPECT_NE(merge_refusal().find("got 0 magnitudes with use_dora = true, expected 5"), std::string::npos);
  write_text(folder_ / "adapter/adapter_config.json", peft_config().dump());
  json of_rest = peft_config();
  of_rest["init_lora_weights"] = "pissa";
  write_text(folder_ / "adapter/adapter_config.json", of_rest.dump());
  EXPECT_NE(merge_refusal().find("got an adapter that began with singular values of its base"), std::string::npos);
  write_text(folder_ / "adapter/adapter_config.json", peft_config().dump());
  write_adapter({});
  EXPECT_NE(merge_refusal().find("expected an adapter"), std::string::npos) << merge_refusal();
}

// Names with and without peft's prefix are of one module.
TEST_F(AdapterFiles, RefusesAFactorThatIsThereTwice) {
  const std::string names[] = {"x.q_proj.lora_A.weight", "base_model.model.x.q_proj.lora_A.weight",
                               "base_model.model.x.q_proj.lora_B.weight"};
  SafetensorsWriter writer(folder_ / "adapter/adapter_model.safetensors", {{names[0], DType::F32, {kRank, kIn}},
                                                                           {names[1], DType::F32, {kRank, kIn}},
                                                                           {names[2], DType::F32, {kOut, kRank}}});
  for (const std::string& name : names) {
    const std::vector<float>& values = name == names[2] ? b_ : a_;
    writer.write(name, 0, static_cast<int64_t>(values.size()), values.data());
  }
  writer.commit();
  EXPECT_NE(merge_refusal().find("got this factor of 'x.q_proj' twice"), std::string::npos) << merge_refusal();
}

TEST_F(AdapterFiles, AModelIsNoAdapter) {
  try {
    read_adapter(*open_weight_source(folder_ / "base"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("got a Hugging Face model, expected a LoRA adapter"), std::string::npos);
  }
}

}  // namespace
}  // namespace fsdp::io
