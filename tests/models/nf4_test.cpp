// Weights as NF4 codes: against the bytes of bitsandbytes (tests/interop/nf4_golden.py), and products against fp64.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "kernels/operators/cross_entropy.h"
#include "kernels/products/linear.h"
#include "kernels/products/nf4/nf4_embedding.h"
#include "kernels/products/nf4/nf4_linear.h"
#include "kernels/raw/formats/nf4.h"
#include "models/lora.h"
#include "models/nf4_base.h"
#include "tests/models/golden.h"

namespace fsdp::models::nf4_test {
namespace {

using kernels::raw::Nf4Layout;

const Tensors& golden() {
  static const Tensors tensors = read_tensors(std::filesystem::path(FSDP_TEST_DATA_DIR) / "nf4.safetensors");
  return tensors;
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : golden()) {
    if (name.ends_with(".weight")) names.push_back(name.substr(0, name.rfind('.')));
  }
  return names;
}

at::Tensor part(const at::Tensor& record, int64_t begin, int64_t end, at::ScalarType type) {
  return record.slice(0, begin, end).clone().view(type);
}

TEST(Nf4, BytesAreThoseOfBitsandbytes) {
  ASSERT_EQ(golden_names().size(), 10u);
  for (const std::string& name : golden_names()) {
    SCOPED_TRACE(name);
    const at::Tensor weight = golden().at(name + ".weight"), record = kernels::encode_nf4(weight);
    const Nf4Layout layout{weight.numel()};
    ASSERT_EQ(record.numel(), layout.num_bytes());
    const auto expect_part = [&](const char* what, const at::Tensor& actual) {
      const at::Tensor& expected = golden().at(name + "." + what);
      EXPECT_TRUE(torch::equal(actual, expected))
          << what << ": " << (actual != expected).sum().item<int64_t>() << " differ";
    };
    expect_part("codes", part(record, layout.codes(), layout.num_bytes(), at::kByte));
    expect_part("absmax", part(record, layout.block_scales(), layout.codes(), at::kByte));
    expect_part("nested_absmax", part(record, 0, layout.mean(), at::kFloat));
    expect_part("nested_offset", part(record, layout.mean(), layout.block_scales(), at::kFloat));
  }
}

TEST(Nf4, DecodesToTheNumbersOfBitsandbytes) {
  for (const std::string& name : golden_names()) {
    SCOPED_TRACE(name);
    const at::Tensor weight = golden().at(name + ".weight"), record = kernels::encode_nf4(weight);
    const auto found = golden().find(name + ".decoded");
    if (found == golden().end()) continue;
    const at::ScalarType type = weight.scalar_type() == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
    const at::Tensor decoded = kernels::decode_nf4(record, weight.size(0), weight.size(1), type);
    EXPECT_TRUE(torch::equal(decoded.to(weight.scalar_type()), found->second));
  }
}

// Ranges may begin and end anywhere, and devices without our kernels compute the same.
TEST(Nf4, DecodesAlikeInPiecesAndByOperators) {
  for (const std::string& name : golden_names()) {
    SCOPED_TRACE(name);
    const at::Tensor weight = golden().at(name + ".weight"), record = kernels::encode_nf4(weight);
    const int64_t out = weight.size(0), in = weight.size(1);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor whole = kernels::decode_nf4(record, out, in, type);
      EXPECT_TRUE(torch::equal(kernels::decode_nf4_by_operators(record, out, in, type), whole)) << type;
    }
    const at::Tensor whole = kernels::decode_nf4(record, out, in, at::kFloat).flatten();
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{1, 1}, {63, 2}, {5, 131}, {64, 64}}) {
      at::Tensor piece = at::empty({count});
      kernels::raw::nf4_decode(record.const_data_ptr<uint8_t>(), Nf4Layout{weight.numel()}, first, count,
                               piece.mutable_data_ptr<float>());
      EXPECT_TRUE(torch::equal(piece, whole.slice(0, first, first + count))) << first;
    }
  }
}

// The mean of the scales is LibTorch's on one thread, for any number of blocks.
TEST(Nf4, MeanOfScalesIsLibTorchs) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  for (const int64_t blocks : {1, 2, 7, 8, 9, 31, 33, 255, 1000, 4097, 70001}) {
    const at::Tensor scales = at::rand({blocks}, at::make_generator<at::CPUGeneratorImpl>(blocks), at::kFloat);
    const Nf4Layout layout{blocks * kernels::raw::kNf4Block};
    at::Tensor record = at::zeros({layout.num_bytes()}, at::kByte);
    kernels::raw::nf4_encode_scales(scales.const_data_ptr<float>(), layout, record.mutable_data_ptr<uint8_t>());
    const at::Tensor mean = part(record, layout.mean(), layout.block_scales(), at::kFloat);
    EXPECT_EQ(mean.item<float>(), scales.mean().item<float>()) << blocks;
  }
  at::set_num_threads(threads);
}

TEST(Nf4, TakesHalfAByteAndAnEighthOfAPercent) {
  const int64_t numel = int64_t{4096} * 14336;
  const double bytes_per_number = static_cast<double>(kernels::nf4_bytes(numel)) / static_cast<double>(numel);
  EXPECT_NEAR(bytes_per_number, 0.5 + 1.0 / 64 + 4.0 / (64 * 256), 1e-6);
  EXPECT_LT(bytes_per_number / 4, 0.13);  // of fp32
}

TEST(Nf4, ProductAndGradientAreThoseOfTheDecodedWeight) {
  torch::manual_seed(31);
  const at::Tensor record = kernels::encode_nf4(at::randn({48, 96}) * 0.1);
  const at::Tensor weight = kernels::decode_nf4(record, 48, 96, at::kFloat).to(at::kDouble);
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-6}, {at::kBFloat16, 1.2e-2}}) {
    for (const int64_t tokens : {1, 40, 300}) {
      const at::Tensor x = at::randn({2, tokens, 96}).to(type).requires_grad_();
      const at::Tensor grad = at::randn({2, tokens, 48}).to(type);
      const at::Tensor y = kernels::nf4_linear(x, record, 48);
      y.backward(grad);
      EXPECT_EQ(y.scalar_type(), type);
      EXPECT_LE(relative_difference(y.detach().to(at::kDouble), x.detach().to(at::kDouble).matmul(weight.t())),
                tolerance);
      EXPECT_LE(relative_difference(x.grad().to(at::kDouble), grad.to(at::kDouble).matmul(weight)), tolerance);
    }
  }
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Nf4, RefusesWhatDoesNotFit) {
  const at::Tensor record = kernels::encode_nf4(at::ones({4, 64}));
  const auto of_product = [&](const at::Tensor& x, const at::Tensor& bytes, int64_t out) {
    return message_of([&] { kernels::nf4_linear(x, bytes, out); });
  };
  EXPECT_NE(of_product(at::ones({2, 64}), record, 5).find("for a weight of 5 x 64, expected"), std::string::npos);
  EXPECT_NE(of_product(at::ones({2, 64}), record.to(at::kFloat), 4).find("expected contiguous bytes"),
            std::string::npos);
  EXPECT_NE(of_product(at::ones({2, 64}, at::kHalf), record, 4).find("expected float32 or bfloat16"),
            std::string::npos);
  const at::Tensor broken = at::full({4, 64}, std::numeric_limits<float>::infinity());
  EXPECT_NE(message_of([&] { kernels::encode_nf4(broken); }).find("not finite"), std::string::npos);
}

// Of tables whose rows begin and end inside of blocks and bytes, too.
TEST(Nf4, RowsThatAreLookedUpAreThoseOfTheDecodedTable) {
  torch::manual_seed(32);
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{320, 128}, {50, 37}, {7, 1}, {3, 200}, {259, 64}}) {
    const at::Tensor record = kernels::encode_nf4(at::randn({rows, width}) * 0.3);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor table = kernels::decode_nf4(record, rows, width, type);
      for (const auto& shape : std::vector<std::vector<int64_t>>{{1}, {700}, {3, 7}, {0}, {2, 0}}) {
        const at::Tensor ids = at::randint(0, rows, shape, at::kLong);
        const at::Tensor expected = at::embedding(table, ids);
        const std::string label = c10::str(rows, " x ", width, " ", type, " ", shape);
        EXPECT_TRUE(torch::equal(kernels::nf4_embedding(record, rows, width, ids, type), expected)) << label;
        EXPECT_TRUE(torch::equal(kernels::nf4_embedding_by_operators(record, rows, width, ids, type), expected))
            << label;
      }
      const at::Tensor ids = at::arange(rows, at::kLong).view({rows, 1}).expand({rows, 2}).t();  // not contiguous
      EXPECT_TRUE(torch::equal(kernels::nf4_embedding(record, rows, width, ids, type), at::embedding(table, ids)));
    }
  }
}

TEST(Nf4, RefusesIdsThatTheTableLacks) {
  const at::Tensor record = kernels::encode_nf4(at::ones({4, 6}));
  const auto look_up = [&](const at::Tensor& ids, int64_t rows = 4) {
    return kernels::nf4_embedding(record, rows, 6, ids, at::kFloat);
  };
  EXPECT_THROW(look_up(at::tensor({0, 4}, at::kLong)), c10::IndexError);
  EXPECT_THROW(look_up(at::tensor({-1}, at::kLong)), c10::IndexError);
  EXPECT_THROW(look_up(at::tensor({1}, at::kInt)), c10::Error);
  EXPECT_THROW(look_up(at::tensor({1}, at::kLong), 9), c10::Error);
  // Where the host does not look at ids, a loss tells.
  const at::Tensor y = kernels::nf4_embedding_by_operators(record, 4, 6, at::tensor({-1, 3, 4}, at::kLong), at::kFloat);
  EXPECT_TRUE(torch::equal(y.isnan().sum(1), at::tensor({6, 0, 6}, at::kLong)));
}

// Kept whole, and a piece of the rows at a time.
TEST(Nf4, LossAndItsGradientAreThoseOfTheDecodedHead) {
  torch::manual_seed(33);
  for (const auto& [vocab, tokens] : {std::pair<int64_t, int64_t>{200, 33}, {60000, 300}}) {
    const int64_t width = 16;
    const at::Tensor record = kernels::encode_nf4(at::randn({vocab, width}) * 0.2);
    const at::Tensor targets = at::randint(0, vocab, {tokens}, at::kLong);
    targets[3] = kernels::kIgnoreIndex;
    const at::Tensor weight = kernels::decode_nf4(record, vocab, width, at::kFloat).to(at::kDouble);
    for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-5}, {at::kBFloat16, 2e-2}}) {
      for (const auto reduction : {kernels::Reduction::kMean, kernels::Reduction::kSum}) {
        const bool is_mean = reduction == kernels::Reduction::kMean;
        if (is_mean && tokens > 33) continue;
        const at::Tensor x = at::randn({tokens, width}).to(type).requires_grad_();
        const at::Tensor wide = x.detach().to(at::kDouble).requires_grad_();
        const at::Tensor logits = wide.matmul(weight.t());
        at::Tensor expected = at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum, kernels::kIgnoreIndex) +
                              1e-3 * at::logsumexp(logits, 1).square().masked_fill(targets.lt(0), 0).sum();
        if (is_mean) expected = expected / (tokens - 1);
        const at::Tensor loss = kernels::nf4_linear_cross_entropy(x, record, vocab, targets, reduction, {1e-3, 0});
        (expected * 3).backward();
        (loss * 3).backward();
        const std::string label = c10::str(vocab, " ", type, is_mean ? " mean" : " sum");
        EXPECT_NEAR(loss.item<double>(), expected.item<double>(), tolerance * expected.item<double>()) << label;
        EXPECT_LE(relative_difference(x.grad().to(at::kDouble), wide.grad()), tolerance) << label;
        const at::NoGradGuard no_grad;
        EXPECT_EQ(kernels::nf4_linear_cross_entropy(x, record, vocab, targets, reduction, {1e-3, 0}).item<double>(),
                  loss.item<double>());
      }
    }
  }
}

enum class Coded { kBlocks, kAll };

// A decoder with codes computes what one with the decoded weights does, adapters and all.
void expect_computes_as_decoded(const std::filesystem::path& base, Coded coded_part) {
  Decoder plain = load_golden(base), coded = load_golden(base);
  const LoraConfig lora{4, 6, 0, {"q_proj", "down_proj"}};
  add_lora(plain, lora, 3);
  add_lora(coded, lora, 3);
  coded_part == Coded::kAll ? keep_all_as_nf4(coded) : keep_blocks_as_nf4(coded);
  const bool is_tied = plain->config().tie_word_embeddings;
  auto weights = plain->named_parameters(), codes = coded->named_parameters();
  const auto table = coded_weights(coded);
  EXPECT_EQ(table.size(), linears_in_blocks(plain).size() + (coded_part == Coded::kBlocks ? 0 : is_tied ? 1 : 2));
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, weight] : table) {
      ASSERT_EQ(weights.find(weight.name)->sizes(), (at::IntArrayRef{weight.out, weight.in})) << name;
      EXPECT_EQ(codes.find(weight.name), nullptr);
      EXPECT_FALSE(codes[name].requires_grad());
      codes[name].copy_(kernels::encode_nf4(weights[weight.name]));
      weights[weight.name].copy_(kernels::decode_nf4(codes[name], weight.out, weight.in, at::kFloat));
    }
    for (auto* decoder : {&plain, &coded}) {
      for (auto& item : (*decoder)->named_parameters()) {
        if (item.key().find("lora_B") != std::string::npos) item.value().fill_(0.02);
      }
    }
  }
  const at::Tensor ids = at::arange(24, at::kLong).view({2, 12}) + 3;
  const at::Tensor targets = shift_labels(ids).flatten();
  for (auto* decoder : {&plain, &coded}) (*decoder)->loss(ids, targets).backward();
  for (const auto& item : weights) {
    if (!item.value().requires_grad()) continue;
    EXPECT_LE(relative_difference(codes[item.key()].grad(), item.value().grad()), 1e-5) << item.key();
  }
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal(coded->forward(ids), plain->forward(ids)));
  EXPECT_TRUE(torch::equal(coded->token_losses(ids, targets), plain->token_losses(ids, targets)));
  EXPECT_NEAR(coded->loss(ids, targets).item<double>(), plain->loss(ids, targets).item<double>(), 1e-6);
}

TEST(Nf4, ADecoderKeepsItsBlocksAsCodes) {
  const auto models = std::filesystem::path(FSDP_TEST_DATA_DIR) / "models";
  expect_computes_as_decoded(models / "smollm3-mini", Coded::kBlocks);
}

// Tied embeddings are one tensor of codes.
TEST(Nf4, ADecoderKeepsEmbeddingsAndHeadAsCodes) {
  const auto models = std::filesystem::path(FSDP_TEST_DATA_DIR) / "models";
  bool seen[2] = {};
  for (const char* name : {"smollm3-mini", "llama3-mini"}) {
    seen[load_golden(models / name)->config().tie_word_embeddings ? 1 : 0] = true;
    expect_computes_as_decoded(models / name, Coded::kAll);
  }
  EXPECT_TRUE(seen[0] && seen[1]);
}

}  // namespace
}  // namespace fsdp::models::nf4_test
