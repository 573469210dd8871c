#include "models/lora.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "io/base/error.h"
#include "io/safetensors/safetensors.h"
#include "io/weights/adapter.h"
#include "tests/models/golden.h"

namespace fsdp::models::lora_test {
namespace {

std::filesystem::path base() { return std::filesystem::path(FSDP_TEST_DATA_DIR) / "models/smollm3-mini"; }

at::Tensor some_ids(const Decoder& decoder) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  return at::randint(3, decoder->config().vocab_size, {2, 9}, generator, at::kLong);
}

LoraConfig config(std::vector<std::string> targets = {"all-linear"}) { return {4, 6, 0, std::move(targets)}; }

TEST(LoraModel, BeginsAsTheBase) {
  Decoder plain = load_golden(base()), adapted = load_golden(base());
  add_lora(adapted, config(), 1);
  const at::Tensor ids = some_ids(plain);
  EXPECT_TRUE(torch::equal(adapted->forward(ids), plain->forward(ids)));
}

TEST(LoraModel, NamesAreThoseOfTheBaseAndOfPeft) {
  Decoder plain = load_golden(base()), adapted = load_golden(base());
  add_lora(adapted, config({"q_proj", "down_proj"}), 1);
  std::vector<std::string> kept, added;
  for (const auto& item : adapted->named_parameters()) {
    (item.value().requires_grad() ? added : kept).push_back(item.key());
    EXPECT_EQ(item.value().scalar_type(), at::kFloat);
  }
  EXPECT_EQ(kept, plain->named_parameters().keys());
  ASSERT_EQ(added.size(), static_cast<size_t>(plain->config().num_hidden_layers) * 4);
  EXPECT_EQ(added[0], "model.layers.0.self_attn.q_proj.lora_A.weight");
  EXPECT_EQ(added[1], "model.layers.0.self_attn.q_proj.lora_B.weight");
  EXPECT_EQ(added[2], "model.layers.0.mlp.down_proj.lora_A.weight");
  const auto parameters = adapted->named_parameters();
  EXPECT_EQ(parameters[added[2]].sizes(), (at::IntArrayRef{4, plain->config().intermediate_size}));
  EXPECT_EQ(parameters[added[3]].sizes(), (at::IntArrayRef{plain->config().hidden_size, 4}));
}

TEST(LoraModel, FirstValuesDependOnSeedAndNameOnly) {
  const auto first_values = [](std::vector<std::string> targets, uint64_t seed) {
    Decoder decoder = load_golden(base());
    add_lora(decoder, config(std::move(targets)), seed);
    return decoder->named_parameters()["model.layers.1.mlp.up_proj.lora_A.weight"].detach();
  };
  const at::Tensor values = first_values({"up_proj"}, 1);
  EXPECT_TRUE(torch::equal(first_values({"all-linear"}, 1), values));
  EXPECT_FALSE(torch::equal(first_values({"up_proj"}, 2), values));
  // Kaiming uniform with a = sqrt(5), as torch.nn.Linear: within 1 / sqrt(in), variance 1 / (3 in).
  const double bound = 1 / std::sqrt(static_cast<double>(values.size(1)));
  EXPECT_LE(values.abs().max().item<double>(), bound);
  EXPECT_GT(values.abs().max().item<double>(), 0.9 * bound);
  EXPECT_NEAR(values.pow(2).mean().item<double>() / (bound * bound / 3), 1, 0.3);
}

// y = (W + alpha / r B A) x in every linear map, whatever the batch.
TEST(LoraModel, ComputesWithTheSum) {
  Decoder adapted = load_golden(base()), merged = load_golden(base());
  add_lora(adapted, config(), 1);
  const at::NoGradGuard no_grad;
  const auto parameters = adapted->named_parameters(), weights = merged->named_parameters();
  for (const auto& item : parameters) {
    const std::string suffix = ".lora_B.weight";
    if (!item.key().ends_with(suffix)) continue;
    fill_normal(item.value(), 0.3, 5, item.key());
    const std::string module = item.key().substr(0, item.key().size() - suffix.size());
    at::Tensor(weights[module + ".weight"]).add_(item.value().mm(parameters[module + ".lora_A.weight"]), 6.0 / 4);
  }
  const at::Tensor ids = some_ids(adapted), expected = merged->forward(ids);
  EXPECT_LE(relative_difference(adapted->forward(ids), expected), 2e-6);
  EXPECT_GE(relative_difference(load_golden(base())->forward(ids), expected), 1e-2);
}

TEST(LoraModel, DropoutOfTheAdapterInTrainingOnly) {
  Decoder decoder = load_golden(base());
  add_lora(decoder, {4, 6, 0.5, {"all-linear"}}, 1);
  const at::NoGradGuard no_grad;
  for (const auto& item : decoder->named_parameters()) {
    if (item.key().ends_with("lora_B.weight")) fill_normal(item.value(), 0.3, 5, item.key());
  }
  const at::Tensor ids = some_ids(decoder);
  decoder->eval();
  const at::Tensor whole = decoder->forward(ids);
  EXPECT_TRUE(torch::equal(decoder->forward(ids), whole));
  decoder->train();
  EXPECT_FALSE(torch::equal(decoder->forward(ids), whole));
}

// Output, gradients and merged weight of tests/data/make_dora_golden.py.
TEST(LoraModel, DoraIsThatOfPeft) {
  const auto file = io::SafetensorsFile::open(std::filesystem::path(FSDP_TEST_DATA_DIR) / "dora.safetensors");
  const auto golden = [&](const std::string& name) {
    const io::TensorEntry& entry = *file.find(name);
    at::Tensor values = at::empty(entry.shape, at::kFloat);
    file.read(entry, 0, values.numel(), values.data_ptr());
    return values;
  };
  Linear map(7, 5, at::TensorOptions(), Bias::kYes);
  map->add_adapter({2, 5.0 / 2, 0, AdapterKind::kDora}, {});
  const auto parameters = map->named_parameters();
  {
    const at::NoGradGuard no_grad;
    map->weight.copy_(golden("weight"));
    map->bias.copy_(golden("bias"));
    at::Tensor(parameters["lora_A.weight"]).copy_(golden("a"));
    at::Tensor(parameters["lora_B.weight"]).copy_(golden("b"));
    at::Tensor(parameters["lora_magnitude_offset"]).copy_(golden("magnitude") - map->row_norms());
  }
  const at::Tensor y = map(golden("x"));
  EXPECT_LE(relative_difference(y, golden("y")), 1e-6);
  (y * golden("seen")).sum().backward();
  EXPECT_LE(relative_difference(parameters["lora_A.weight"].grad(), golden("grad_a")), 1e-5);
  EXPECT_LE(relative_difference(parameters["lora_B.weight"].grad(), golden("grad_b")), 1e-5);
  EXPECT_LE(relative_difference(parameters["lora_magnitude_offset"].grad(), golden("grad_magnitude")), 1e-5);

  const auto numbers = [&](const std::string& name) {
    const at::Tensor values = golden(name);
    return std::vector<float>(values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel());
  };
  io::LowRank factors{2, 7, 5, numbers("a"), numbers("b"), io::Magnitude::kNorms, numbers("magnitude")};
  std::vector<float> merged = numbers("weight");
  io::work_in(factors, 5.0 / 2, 0, 5, merged.data());
  EXPECT_LE(relative_difference(at::tensor(merged).view({5, 7}), golden("merged")), 1e-6);
}

TEST(LoraModel, UnknownTargetsAreNamed) {
  Decoder decoder = load_golden(base());
  EXPECT_EQ(linear_names(decoder),
            (std::vector<std::string>{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}));
  EXPECT_THROW(add_lora(decoder, config({"lm_head"}), 1), io::Error);
  EXPECT_THROW(add_lora(decoder, config({}), 1), io::Error);
}

}  // namespace
}  // namespace fsdp::models::lora_test
