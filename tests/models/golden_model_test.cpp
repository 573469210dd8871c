// Logits, loss and gradients against what Hugging Face computes. Tolerances: README of the golden set.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kernels/operators/cross_entropy.h"
#include "tests/models/golden.h"

namespace fsdp::models::golden_model_test {
namespace {

constexpr double kLogits = 5e-5, kLoss = 1e-5, kGradient = 1e-5, kGradientRelative = 2e-5;

at::Tensor loss_of(const at::Tensor& logits_BTV, const at::Tensor& labels_BT) {
  return kernels::cross_entropy(logits_BTV.flatten(0, 1), shift_labels(labels_BT).flatten());
}

void expect_golden(Decoder& model, const at::Tensor& logits, const at::Tensor& loss, const Tensors& expected) {
  EXPECT_LE(largest_difference(logits, expected.at("logits")), kLogits);
  EXPECT_LE(largest_difference(loss, expected.at("loss")), kLoss);
  loss.backward();
  size_t compared = 0;
  for (const auto& parameter : model->named_parameters()) {
    const auto gradient = expected.find("grad." + parameter.key());
    if (gradient == expected.end()) continue;
    ++compared;
    EXPECT_LE(largest_difference(parameter.value().grad(), gradient->second), kGradient) << parameter.key();
    EXPECT_LE(relative_difference(parameter.value().grad(), gradient->second), kGradientRelative) << parameter.key();
  }
  const auto golden = std::count_if(expected.begin(), expected.end(),
                                    [](const auto& entry) { return entry.first.rfind("grad.", 0) == 0; });
  EXPECT_EQ(compared, static_cast<size_t>(golden));
}

class GoldenModel : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenModel, LogitsLossAndEveryGradient) {
  Decoder model = load_golden(GetParam());
  const Tensors expected = read_tensors(GetParam() / "expected.safetensors");
  const at::Tensor logits = model->forward(expected.at("input_ids"));
  expect_golden(model, logits, loss_of(logits, expected.at("labels")), expected);
  EXPECT_EQ(num_parameters(model->config()), [&] {
    int64_t count = 0;
    for (const auto& parameter : model->parameters()) count += parameter.numel();
    return count;
  }());
}

TEST_P(GoldenModel, TwoDocumentsPerRowEqualTwoBatches) {
  Decoder model = load_golden(GetParam());
  const at::Tensor ids = read_tensors(GetParam() / "expected.safetensors").at("input_ids");
  const int64_t rows = ids.size(0), length = ids.size(1), first = 7;
  std::vector<int64_t> starts = {0};
  for (int64_t row = 0; row < rows; ++row) {
    starts.push_back(row * length + first);
    starts.push_back((row + 1) * length);
  }
  Sequence sequence;
  sequence.cu_seqlens = at::tensor(starts);
  at::NoGradGuard no_grad;
  const at::Tensor separate = at::cat({model->forward(ids.slice(1, 0, first)), model->forward(ids.slice(1, first))}, 1);
  EXPECT_LE(largest_difference(model->forward(ids, sequence), separate), kLogits);
}

TEST_P(GoldenModel, CacheEqualsFullForward) {
  Decoder model = load_golden(GetParam());
  const at::Tensor ids = read_tensors(GetParam() / "expected.safetensors").at("input_ids");
  const at::Tensor full = model->forward(ids);
  for (const std::vector<int64_t>& steps :
       {std::vector<int64_t>{ids.size(1)}, {5, 1, 1, 6, 3}, {1, 2, 16}, {8, 8, 1, 1}}) {
    KeyValueCache cache(ids.size(0));
    int64_t begin = 0;
    for (const int64_t step : steps) {
      const at::Tensor logits = model->forward_cached(ids.slice(1, begin, begin + step), cache);
      EXPECT_FALSE(logits.requires_grad());
      EXPECT_LE(largest_difference(logits, full.slice(1, begin, begin + step)), kLogits) << begin << "+" << step;
      begin += step;
    }
    EXPECT_EQ(cache.num_tokens(), begin);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModel, testing::ValuesIn(golden_folders("models", "expected.safetensors")),
                         [](const auto& info) { return test_name(info.param); });

class GoldenPacked : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenPacked, DocumentsStayApart) {
  const Tensors expected = read_tensors(GetParam() / "packed.safetensors");
  for (const bool with_positions : {true, false}) {
    Decoder model = load_golden(GetParam());
    Sequence sequence;
    sequence.cu_seqlens = expected.at("cu_seqlens");
    if (with_positions) sequence.position_ids_BT = expected.at("position_ids");
    const at::Tensor logits = model->forward(expected.at("input_ids"), sequence);
    expect_golden(model, logits, loss_of(logits, expected.at("labels")), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenPacked, testing::ValuesIn(golden_folders("models", "packed.safetensors")),
                         [](const auto& info) { return test_name(info.param); });

// <name>-v4config holds only a config.json, in the layout of transformers 4.
class OldLayout : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(OldLayout, GivesTheSameModel) {
  std::string name = GetParam().filename().string();
  name.resize(name.size() - std::string("-v4config").size());
  const auto folder = GetParam().parent_path() / name;
  EXPECT_EQ(to_hugging_face(read_decoder_config(GetParam())), to_hugging_face(read_decoder_config(folder)));
  Decoder model = load_golden(folder, GetParam());
  const Tensors expected = read_tensors(folder / "expected.safetensors");
  const at::Tensor logits = model->forward(expected.at("input_ids"));
  expect_golden(model, logits, loss_of(logits, expected.at("labels")), expected);
}

std::vector<std::filesystem::path> old_layouts() {
  std::vector<std::filesystem::path> folders;
  for (const auto& folder : golden_folders("models", "config.json"))
    if (folder.string().ends_with("-v4config")) folders.push_back(folder);
  return folders;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OldLayout);
INSTANTIATE_TEST_SUITE_P(All, OldLayout, testing::ValuesIn(old_layouts()),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace fsdp::models::golden_model_test
