// Layers of experts on one device, against transformers, and how files and config.json tell of them.
#include "models/mixture.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "io/base/error.h"
#include "models/config/presets.h"
#include "models/config/stored_parts.h"
#include "tests/models/golden.h"

namespace fsdp::models::mixture_test {
namespace {

constexpr double kLogits = 1e-5, kLoss = 1e-5, kGradient = 1e-5;

class GoldenExperts : public testing::TestWithParam<std::filesystem::path> {
 protected:
  Tensors expected_ = read_tensors(GetParam() / "expected.safetensors");
  Tensors balanced_ = read_tensors(GetParam() / "balanced.safetensors");
};

TEST_P(GoldenExperts, TheBalancingLossAndItsGradients) {
  Decoder model = load_golden(GetParam());
  const at::Tensor loss = model->loss(expected_.at("input_ids"), shift_labels(expected_.at("labels")).flatten());
  const at::Tensor balance = model->balance_loss();
  EXPECT_LE(largest_difference(balance, balanced_.at("aux_loss")), kLoss);
  EXPECT_FALSE(model->balance_loss().defined());
  const at::Tensor total = loss + model->config().experts.balance_loss * balance;
  EXPECT_LE(largest_difference(total, balanced_.at("loss")), kLoss);
  total.backward();
  size_t compared = 0;
  for (const auto& parameter : model->named_parameters()) {
    const auto gradient = balanced_.find("grad." + parameter.key());
    if (gradient == balanced_.end()) continue;
    EXPECT_LE(largest_difference(parameter.value().grad(), gradient->second), kGradient) << parameter.key();
    ++compared;
  }
  EXPECT_GE(compared, 3u);
}

TEST_P(GoldenExperts, LogitsAndHowOftenExpertsAreChosen) {
  Decoder model = load_golden(GetParam());
  const at::Tensor ids = expected_.at("input_ids");
  EXPECT_LE(largest_difference(model->forward(ids), expected_.at("logits")), kLogits);
  model->balance_loss();
  const ExpertsConfig& experts = model->config().experts;
  EXPECT_EQ(model->expert_counts().size(1), experts.count);
  EXPECT_TRUE(at::all(model->expert_counts().sum(1).eq(ids.numel() * experts.per_token)).item<bool>());
}

// A loss that nobody adds changes no gradient, and neither does one with the factor 0.
TEST_P(GoldenExperts, ALossThatIsNotAddedIsNotThere) {
  Decoder plain = load_golden(GetParam()), asked = load_golden(GetParam());
  const at::Tensor targets = shift_labels(expected_.at("labels")).flatten();
  plain->loss(expected_.at("input_ids"), targets).backward();
  const at::Tensor loss = asked->loss(expected_.at("input_ids"), targets);
  (loss + 0 * asked->balance_loss()).backward();
  for (const auto& parameter : plain->named_parameters())
    EXPECT_LE(largest_difference(parameter.value().grad(), asked->named_parameters()[parameter.key()].grad()), 1e-7);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenExperts, testing::ValuesIn(golden_folders("models", "balanced.safetensors")),
                         [](const auto& info) { return test_name(info.param); });

DecoderConfig small_moe(const std::string& family) {
  DecoderConfig config = family_config(family);
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.intermediate_size = 6;
  config.num_hidden_layers = 2;
  config.num_attention_heads = config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.experts.count = 4;
  config.experts.per_token = 2;
  config.experts.inner_size = 6;
  return config;
}

at::Tensor by_hand(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up, const at::Tensor& down) {
  return at::linear(at::silu(at::linear(x, gate)) * at::linear(x, up), down);
}

TEST(Mixture, IsASumOfChosenAndSharedExperts) {
  DecoderConfig config = small_moe("qwen3_moe");
  config.experts.shared_inner_size = 5;
  config.experts.normalise = false;
  config.experts.scale = 2.5;
  config.experts.groups = 2;
  Mixture mixture(config, at::TensorOptions());
  const at::Generator numbers = at::detail::createCPUGenerator(17);
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : mixture->parameters()) parameter.normal_(0, 0.5, numbers);
  const auto parameter = mixture->named_parameters();
  const at::Tensor x = at::randn({1, 7, 8}, numbers);
  ExpertBalance balance;
  const at::Tensor y = mixture(x, balance);
  for (int64_t token = 0; token < 7; ++token) {
    const at::Tensor own = x[0][token];
    const at::Tensor scores = at::linear(own, parameter["gate.weight"]).softmax(-1);
    // The better half, then two of it: all of it.
    const bool second_half = scores.narrow(0, 2, 2).max().item<float>() > scores.narrow(0, 0, 2).max().item<float>();
    at::Tensor sum = by_hand(own, parameter["shared_experts.gate_proj.weight"],
                             parameter["shared_experts.up_proj.weight"], parameter["shared_experts.down_proj.weight"]);
    for (const int64_t expert : {second_half ? 2 : 0, second_half ? 3 : 1}) {
      const at::Tensor gate_up = parameter["experts.gate_up_proj"][expert];
      sum = sum +
            2.5 * scores[expert] *
                by_hand(own, gate_up.narrow(0, 0, 6), gate_up.narrow(0, 6, 6), parameter["experts.down_proj"][expert]);
    }
    EXPECT_LE(largest_difference(y[0][token], sum), 1e-5) << token;
  }
}

// One token of many experts: most have nothing to do, with and without gradients.
TEST(Mixture, ExpertsThatNobodyChooses) {
  DecoderConfig config = small_moe("mixtral");
  config.experts.count = 16;
  Decoder model(config);
  model->reset_parameters(3);
  const at::Tensor ids = at::tensor({4}, at::kLong).view({1, 1});
  at::Tensor without;
  {
    const at::NoGradGuard no_grad;
    without = model->forward(ids);
  }
  const at::Tensor with = model->forward(ids);
  EXPECT_TRUE(at::equal(with, without));
  with.sum().backward();
  for (const auto& parameter : model->named_parameters()) ASSERT_TRUE(parameter.value().grad().defined());
  const at::Tensor used =
      model->named_parameters()["model.layers.0.mlp.experts.down_proj"].grad().abs().sum({1, 2}).gt(0);
  EXPECT_EQ(used.sum().item<int64_t>(), 2);
}

// Of a penalty on the gradient of a loss with the balancing loss in it: with our two functions, or by the definition.
// If `is_linear`, the penalty's backward comes to the layer's function and not to the last one.
at::Tensor gradient_of_penalty(bool is_ours, bool is_linear) {
  const at::Generator numbers = at::detail::createCPUGenerator(19);
  const at::Tensor x = at::randn({5, 6}, numbers).requires_grad_(), gate = at::randn({6, 4}, numbers);
  const at::Tensor scores = at::mm(x, gate).softmax(-1);
  const kernels::Routing routing{std::get<1>(scores.topk(2)), {}, scores};
  ExpertBalance balance;
  balance.begin();
  const at::Tensor y = x.sin();
  const at::Tensor last = (is_ours ? balance.watch(y, routing) : y).pow(3);
  const at::Tensor end = is_ours ? balance.finish(last) : last;
  const at::Tensor slope_E = balance_slope(kernels::count_choices(routing).to(at::kDouble), 5).to(at::kFloat);
  const at::Tensor balanced = is_ours ? balance.loss(nullptr) : (slope_E * scores.sum(0)).sum();
  const at::Tensor total = is_linear ? end.sum() + 3 * balanced : end.square().sum() + balanced.square();
  const at::Tensor slope = torch::autograd::grad({total}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  return torch::autograd::grad({slope.square().sum()}, {x})[0];
}

TEST(Mixture, TheBalancingLossHasSecondDerivatives) {
  for (const bool is_linear : {false, true}) {
    const at::Tensor expected = gradient_of_penalty(/*is_ours=*/false, is_linear);
    EXPECT_LE(largest_difference(gradient_of_penalty(/*is_ours=*/true, is_linear), expected), 1e-4)
        << (is_linear ? "linear" : "squared") << " among " << expected.abs().max().item<float>();
  }
}

TEST(StoredParts, AreTensorsOfSingleExperts) {
  const DecoderConfig mixtral = small_moe("mixtral"), qwen = small_moe("qwen3_moe");
  const NamedShape gate_up = {"model.layers.1.mlp.experts.gate_up_proj", {4, 12, 8}},
                   down = {"model.layers.1.mlp.experts.down_proj", {4, 8, 6}},
                   gate = {"model.layers.1.mlp.gate.weight", {4, 8}},
                   other = {"model.layers.1.self_attn.q_proj.weight", {8, 8}};
  const std::string block = "model.layers.1.block_sparse_moe.";
  ASSERT_EQ(stored_parts(mixtral, gate_up).size(), 8u);
  EXPECT_EQ(stored_parts(mixtral, gate_up)[2], (NamedShape{block + "experts.1.w1.weight", {6, 8}}));
  EXPECT_EQ(stored_parts(mixtral, gate_up)[3], (NamedShape{block + "experts.1.w3.weight", {6, 8}}));
  EXPECT_EQ(stored_parts(mixtral, down)[3], (NamedShape{block + "experts.3.w2.weight", {8, 6}}));
  EXPECT_EQ(stored_parts(mixtral, gate), (std::vector<NamedShape>{{block + "gate.weight", {4, 8}}}));
  EXPECT_EQ(stored_parts(qwen, gate_up)[1], (NamedShape{"model.layers.1.mlp.experts.0.up_proj.weight", {6, 8}}));
  EXPECT_EQ(stored_parts(qwen, gate), (std::vector<NamedShape>{gate}));
  EXPECT_EQ(stored_parts(qwen, other), (std::vector<NamedShape>{other}));
  EXPECT_EQ(stored_parts(family_config("llama"), other), (std::vector<NamedShape>{other}));
}

std::string error_of(const nlohmann::json& object) {
  try {
    parse_decoder_config(object, "test");
  } catch (const io::Error& error) {
    return error.what();
  }
  return "";
}

TEST(ExpertKeys, AreReadAndWritten) {
  const nlohmann::json written = to_hugging_face(small_moe("qwen3_moe"));
  DecoderConfig config = parse_decoder_config(written, "test");
  EXPECT_EQ(to_hugging_face(config), written);
  nlohmann::json changed = written;
  changed["num_hidden_layers"] = 5;
  changed["layer_types"] = std::vector<std::string>(5, "full_attention");
  changed["decoder_sparse_step"] = 2;
  changed["mlp_only_layers"] = {3};
  config = parse_decoder_config(changed, "test");
  for (int64_t layer = 0; layer < 5; ++layer) EXPECT_EQ(config.has_experts(layer), layer == 1) << layer;
  EXPECT_EQ(parse_decoder_config(to_hugging_face(config), "test").experts.dense_layers, config.experts.dense_layers);
  changed["num_local_experts"] = changed["num_experts"];
  changed.erase("num_experts");
  EXPECT_EQ(parse_decoder_config(changed, "test").experts.count, 4);
}

TEST(ExpertKeys, DeepSeekSaysThemInItsOwnWords) {
  const auto folder = std::filesystem::path(FSDP_TEST_DATA_DIR) / "models/deepseek2-mini";
  const DecoderConfig config = read_decoder_config(folder);
  EXPECT_EQ(config.experts.shared_inner_size, 20);
  EXPECT_EQ(config.experts.groups, 3);
  EXPECT_EQ(config.head_dim, 10);
  EXPECT_FALSE(config.has_experts(0));
  EXPECT_TRUE(config.has_experts(1));
  EXPECT_TRUE(config.warnings.empty());
  const nlohmann::json written = to_hugging_face(config);
  EXPECT_EQ(to_hugging_face(parse_decoder_config(written, "test")), written);
  for (const auto& [key, value, text] :
       {std::tuple<const char*, nlohmann::json, const char*>{"norm_topk_prob", true, "false, for this model_type"},
        {"topk_method", "noaux_tc", "\"group_limited_greedy\""},
        {"scoring_func", "sigmoid", "scoring_func"},
        {"n_group", 4, "a divisor of n_routed_experts"},
        {"v_head_dim", 11, "an integer from 1 to 10"},
        {"rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 1e4}}, "\"default\" or \"llama3\""}}) {
    nlohmann::json changed = written;
    changed[key] = value;
    EXPECT_NE(error_of(changed).find(text), std::string::npos) << key << error_of(changed);
  }
}

TEST(ExpertKeys, WhatDoesNotFitIsRefused) {
  const auto refused = [](const char* key, nlohmann::json value, const std::string& family = "qwen3_moe") {
    nlohmann::json object = to_hugging_face(small_moe(family));
    object[key] = std::move(value);
    return error_of(object);
  };
  EXPECT_NE(refused("num_experts_per_tok", 5).find("an integer from 1 to 4"), std::string::npos);
  EXPECT_NE(refused("mlp_only_layers", {0, 1}).find("at least one layer with experts"), std::string::npos);
  EXPECT_NE(refused("mlp_only_layers", {7}).find("a list of layers, from 0 to 1"), std::string::npos);
  EXPECT_NE(refused("router_jitter_noise", 0.1, "mixtral").find("router_jitter_noise"), std::string::npos);
  nlohmann::json dense = to_hugging_face(find_preset("llama-2-7b")->config);
  dense["num_local_experts"] = 8;
  EXPECT_NE(error_of(dense).find("null, for this model_type"), std::string::npos);
  DecoderConfig unsayable = small_moe("mixtral");
  unsayable.experts.shared_inner_size = 3;
  EXPECT_THROW(to_hugging_face(unsayable), io::Error);
  unsayable = small_moe("mixtral");
  unsayable.model_type = "llama";
  EXPECT_THROW(to_hugging_face(unsayable), io::Error);
}

TEST(ExpertKeys, ATokenMeetsAPartOfTheParameters) {
  const DecoderConfig config = find_preset("mixtral-8x7b")->config;
  EXPECT_EQ(num_active_parameters(config), 12879925248);
  // Of 8 experts 2: three quarters of the experts' products are not done.
  DecoderConfig all = config;
  all.experts.per_token = 8;
  const double experts = 6.0 * 32 * 3 * 4096 * 14336 * 8;
  EXPECT_NEAR(flops_per_token(all, 1024) - flops_per_token(config, 1024), 0.75 * experts, 1e-9 * experts);
}

}  // namespace
}  // namespace fsdp::models::mixture_test
