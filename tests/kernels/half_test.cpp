// Every operator in fp16 on the CPU: the fp32 one of the same values, rounded, forward and backward.
#include <cmath>

#include "kernels/operators/cached_attention.h"
#include "kernels/operators/causal_attention.h"
#include "kernels/operators/cross_entropy.h"
#include "kernels/operators/embedding.h"
#include "kernels/operators/rms_norm.h"
#include "kernels/operators/rope.h"
#include "kernels/operators/swiglu.h"
#include "kernels/products/fused_linear.h"
#include "kernels/products/linear.h"
#include "tests/kernels/compare.h"

namespace fsdp::kernels::half_test {
namespace {

constexpr double kTolerance = 2e-3;  // two roundings of 2^-11

// `kernel` with fp16 inputs against itself with the same values in fp32.
void expect_like_fp32(const Differentiable& kernel, const Inputs& inputs, const std::string& label) {
  const Differentiable wide = [&](const Inputs& in) {
    Inputs widened;
    for (const at::Tensor& each : in) widened.push_back(each.is_floating_point() ? each.to(at::kFloat) : each);
    const at::Tensor y = kernel(widened);
    return y.dim() == 0 ? y : y.to(at::kHalf);  // losses are fp32 in any case
  };
  expect_same(kernel, wide, inputs, kTolerance, label);
}

at::Tensor half_values(at::IntArrayRef sizes) { return values(sizes, at::kHalf); }

TEST(HalfOnCpu, Products) {
  torch::manual_seed(1);
  for (const int64_t rows : {1, 3, 40, 300}) {
    expect_like_fp32([](const Inputs& in) { return kernels::linear(in[0], in[1]); },
                     {half_values({2, rows, 48}), half_values({33, 48})}, c10::str("linear of ", rows));
  }
}

TEST(HalfOnCpu, RowsAndAttention) {
  torch::manual_seed(2);
  expect_like_fp32([](const Inputs& in) { return rms_norm(in[0], in[1], 1e-5); },
                   {half_values({5, 7, 33}), half_values({33})}, "rms_norm");
  for (const size_t result : {0, 1}) {
    const auto add = [result](const Inputs& in) {
      const auto [sum, y] = add_rms_norm(in[0], in[1], in[2], 1e-5);
      return result == 0 ? sum + 0 * y : y;
    };
    expect_like_fp32(add, {half_values({5, 33}), half_values({5, 33}), half_values({33})}, "add_rms_norm");
  }
  expect_like_fp32([](const Inputs& in) { return swiglu(in[0], in[1]); }, {half_values({9, 21}), half_values({9, 21})},
                   "swiglu");
  const at::Tensor angles = at::rand({6, 8});
  for (const bool in_place : {false, true}) {
    const auto turn = [&](const Inputs& in) {
      at::Tensor q = in[0] * 1, k = in[1] * 1;
      const at::Tensor cos = angles.cos().to(q.dtype()), sin = angles.sin().to(q.dtype());
      if (in_place) {
        apply_rope_(q, k, cos, sin);
      } else {
        std::tie(q, k) = apply_rope(q, k, cos, sin);
      }
      return at::cat({q, k}, 2);
    };
    expect_like_fp32(turn, {half_values({2, 6, 4, 8}), half_values({2, 6, 2, 8})}, "rope");
  }
  expect_like_fp32(
      [](const Inputs& in) {
        return causal_attention(in[0], in[1], in[2], {7, 5}, 3);
      },
      {half_values({2, 6, 4, 8}), half_values({2, 6, 2, 8}), half_values({2, 6, 2, 8})}, "attention");
}

TEST(HalfOnCpu, EmbeddingsAndLosses) {
  torch::manual_seed(3);
  const at::Tensor ids = at::arange(60) % 7, targets = at::arange(40) % 19;
  targets[3] = kIgnoreIndex;
  expect_like_fp32([](const Inputs& in) { return kernels::embedding(in[0], in[1]); }, {half_values({11, 6}), ids},
                   "embedding");
  for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
    const LossTerms terms{1e-3, 0.1};
    expect_like_fp32([&](const Inputs& in) { return cross_entropy(in[0], in[1], reduction, terms); },
                     {half_values({40, 19}), targets}, "cross_entropy");
    expect_like_fp32([&](const Inputs& in) { return linear_cross_entropy(in[0], in[1], in[2], reduction, terms); },
                     {half_values({40, 12}), half_values({19, 12}), targets}, "linear_cross_entropy");
  }
  // In several pieces.
  const at::Tensor many = at::arange(50) % 9000;
  expect_like_fp32([&](const Inputs& in) { return cross_entropy(in[0], in[1]) * 1000; },
                   {half_values({50, 9000}), many}, "cross_entropy of many");
}

// Small gradients survive a loss scale, whatever the forward keeps.
TEST(HalfOnCpu, ScaledLossesReachTheWeight) {
  torch::manual_seed(4);
  const int64_t rows = 1200, vocab = 30000;  // more logits than are kept
  at::Tensor x = (half_values({rows, 8}) * 0.01).requires_grad_(),
             w = (half_values({vocab, 8}) * 0.01).requires_grad_();
  const at::Tensor targets = at::arange(rows) % vocab;
  (linear_cross_entropy(x, w, targets) * 65536).backward();
  at::Tensor wide_x = x.detach().to(at::kFloat).requires_grad_(), wide_w = w.detach().to(at::kFloat).requires_grad_();
  (linear_cross_entropy(wide_x, wide_w, targets) * 65536).backward();
  EXPECT_LE((x.grad() - wide_x.grad()).abs().max().item<double>(), 4e-3 * wide_x.grad().abs().max().item<double>());
  EXPECT_LE((w.grad() - wide_w.grad()).abs().max().item<double>(), 4e-3 * wide_w.grad().abs().max().item<double>());
}

TEST(HalfOnCpu, CachedAttention) {
  torch::manual_seed(5);
  const at::NoGradGuard no_grad;
  const int64_t width = cached_width(8);
  const auto attend = [&](at::ScalarType dtype) {
    torch::manual_seed(6);
    at::Tensor k = at::zeros({2, 2, 16, width}, dtype), v = at::zeros({2, 2, 16, width}, dtype);
    store_in_cache(half_values({2, 5, 2, 8}).to(dtype), k, {0, 1}, {0, 0});
    store_in_cache(half_values({2, 5, 2, 8}).to(dtype), v, {0, 1}, {0, 0});
    return cached_attention(half_values({2, 1, 4, 8}).to(dtype), k, v, {0, 1}, {4, 4}, 0);
  };
  const at::Tensor y = attend(at::kHalf);
  EXPECT_EQ(y.scalar_type(), at::kHalf);
  EXPECT_LE(relative_difference(y, attend(at::kFloat)), kTolerance);
}

}  // namespace
}  // namespace fsdp::kernels::half_test
