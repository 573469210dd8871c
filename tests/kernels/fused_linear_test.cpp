#include "kernels/products/fused_linear.h"

#include <c10/core/InferenceMode.h>

#include "kernels/products/linear.h"
#include "kernels/products/rowwise_scope.h"
#include "tests/kernels/calls_of.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/second_derivative.h"
#include "tests/kernels/slot_owner.h"

namespace fsdp::kernels::fused_linear_test {
namespace {

// Weights [outs[i], in] side by side in one buffer, leaves.
std::vector<at::Tensor> side_by_side(const std::vector<int64_t>& outs, const at::Tensor& buffer_NK) {
  std::vector<at::Tensor> weights;
  int64_t begin = 0;
  for (const int64_t out : outs) {
    weights.push_back(buffer_NK.narrow(0, begin, out).detach().requires_grad_());
    begin += out;
  }
  return weights;
}

at::Tensor rows_of_one(const std::vector<int64_t>& outs, int64_t in, at::ScalarType dtype) {
  int64_t total = 0;
  for (const int64_t out : outs) total += out;
  return values({total, in}, dtype);
}

const std::vector<std::vector<int64_t>> kOuts = {{32, 16, 16}, {24, 24}, {7}, {1, 2, 3, 5}};

TEST(FusedLinear, EqualsSeparateMaps) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& outs : kOuts) {
      for (const auto& shape : std::vector<std::vector<int64_t>>{{1, 16}, {2, 9, 48}, {3, 67, 33}}) {
        const at::Tensor buffer = rows_of_one(outs, shape.back(), dtype);
        const auto run = [&](const Inputs& in, bool is_fused) {
          const auto weights = side_by_side(outs, buffer);
          std::vector<at::Tensor> results;
          if (is_fused) {
            const CallsOf calls("fsdp::fused_linear");
            results = fused_linear(in[0], weights);
            EXPECT_EQ(calls.count(), 1);
          } else {
            for (const at::Tensor& weight : weights) results.push_back(at::linear(in[0], weight));
          }
          const at::Tensor y = at::cat(results, -1);
          // What reaches the weights, beside y, as a second thing to compare.
          (y * y.detach()).sum().backward({}, /*retain_graph=*/true);
          std::vector<at::Tensor> grads;
          for (const at::Tensor& weight : weights) grads.push_back(weight.grad());
          in[0].mutable_grad().reset();
          return at::cat({y.flatten(0, -2).flatten(), at::cat(grads).flatten()});
        };
        expect_same([&](const Inputs& in) { return run(in, true); }, [&](const Inputs& in) { return run(in, false); },
                    {values(shape, dtype)}, 3 * tolerance_of(dtype), c10::str(dtype, " ", shape, " -> ", outs));
      }
    }
  }
}

TEST(FusedLinear, WeightsApartTakeAProductEach) {
  torch::manual_seed(2);
  const at::Tensor x = values({5, 8}, at::kFloat), buffer = values({12, 8}, at::kFloat);
  const at::Tensor first = buffer.narrow(0, 0, 4), second = buffer.narrow(0, 4, 4), last = buffer.narrow(0, 8, 4);
  const std::vector<std::vector<at::Tensor>> apart = {
      {first, last}, {second, first}, {first, second.clone()}, {first.detach().requires_grad_(), second}};
  for (const auto& weights : apart) {
    const CallsOf calls("fsdp::fused_linear");
    const auto results = fused_linear(x, weights);
    EXPECT_EQ(calls.count(), 0);
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(at::equal(results[i], kernels::linear(x, weights[i])));
  }
  EXPECT_TRUE(lie_side_by_side({first, second, last}));
  EXPECT_FALSE(lie_side_by_side({first, last}));
  EXPECT_FALSE(lie_side_by_side({}));
}

// Rows that do not depend on their neighbours are promised by linear(), and are the same here.
TEST(FusedLinear, KeepsWhatRowwiseScopesPromise) {
  torch::manual_seed(3);
  const at::NoGradGuard no_grad;
  const at::Tensor x = values({3, 1, 64}, at::kFloat);
  const auto weights = side_by_side({32, 16}, values({48, 64}, at::kFloat));
  const RowwiseScope scope(Rowwise::kFewRows);
  const auto results = fused_linear(x, weights);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(results[i], kernels::linear(x, weights[i])));
}

TEST(FusedLinear, RunsInInferenceMode) {
  torch::manual_seed(4);
  const at::Tensor x = values({2, 3, 16}, at::kBFloat16);
  const auto weights = side_by_side({8, 8}, values({16, 16}, at::kBFloat16));
  const c10::InferenceMode inference;
  const auto results = fused_linear(x, weights);
  EXPECT_LE(relative_difference(results[1], at::linear(x, weights[1])), tolerance_of(at::kBFloat16));
}

TEST(FusedLinear, FrozenWeightsLetGradientsPass) {
  torch::manual_seed(5);
  const at::Tensor x = values({2, 3, 16}, at::kFloat).requires_grad_();
  auto weights = side_by_side({8, 4}, values({12, 16}, at::kFloat));
  for (at::Tensor& weight : weights) weight.requires_grad_(false);
  const auto results = fused_linear(x, weights);
  (results[0].sum() + 2 * results[1].sum()).backward();
  const at::Tensor expected = weights[0].sum(0) + 2 * weights[1].sum(0);
  EXPECT_LE(relative_difference(x.grad(), expected.expand_as(x)), tolerance_of(at::kFloat));
  EXPECT_FALSE(weights[0].grad().defined());
}

// A result that nobody used counts as zero.
TEST(FusedLinear, ResultsMayBeUnused) {
  torch::manual_seed(6);
  const at::Tensor x = values({4, 16}, at::kFloat).requires_grad_();
  const auto weights = side_by_side({8, 4}, values({12, 16}, at::kFloat));
  fused_linear(x, weights)[1].sum().backward();
  EXPECT_LE(relative_difference(x.grad(), weights[1].sum(0).expand_as(x)), tolerance_of(at::kFloat));
  EXPECT_EQ(weights[0].grad().abs().max().item<float>(), 0);
}

TEST(FusedLinear, FillsSlotsThatLieSideBySideOrApart) {
  torch::manual_seed(7);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t tokens : {5, 200}) {
      for (const bool adds : {false, true}) {
        for (const bool apart : {false, true}) {
          const auto weights = side_by_side({32, 16, 16}, values({64, 48}, dtype));
          const at::Tensor x = values({tokens, 48}, dtype), buffer = values({80, 48}, at::kFloat);
          std::vector<SlotOwner::Owned> owned;
          std::vector<at::Tensor> before;
          for (int64_t i = 0, row = 0; i < 3; row += weights[static_cast<size_t>(i++)].size(0) + (apart ? 8 : 0)) {
            const at::Tensor& weight = weights[static_cast<size_t>(i)];
            owned.push_back({weight, buffer.narrow(0, row, weight.size(0))});
            before.push_back(owned.back().target.clone());
          }
          const SlotOwner owner(owned, adds, 0.5);
          std::vector<at::Tensor> grads;
          for (const at::Tensor& weight : weights) grads.push_back(values({tokens, weight.size(0)}, dtype));
          torch::autograd::backward(fused_linear(x, weights), grads);
          for (size_t i = 0; i < 3; ++i) {
            EXPECT_TRUE(is_stand_in(weights[i].grad()));
            const at::Tensor exact =
                0.5 * grads[i].to(at::kDouble).t().mm(x.to(at::kDouble)) + (adds ? 1 : 0) * before[i].to(at::kDouble);
            EXPECT_LE(relative_difference(owned[i].target, exact), tolerance_of(dtype))
                << dtype << " " << tokens << " tokens, adds " << adds << ", apart " << apart;
          }
        }
      }
    }
  }
}

TEST(FusedLinear, HasFirstDerivativesOnly) {
  torch::manual_seed(8);
  const at::Tensor both = values({24, 16}, at::kFloat);
  expect_first_derivatives_only(
      [](const Inputs& in) {
        return at::cat(fused_linear(in[0], {in[1], in[2]}), -1);
      },
      {values({2, 5, 16}, at::kFloat), both.narrow(0, 0, 16), both.narrow(0, 16, 8)}, "fused_linear");
}

}  // namespace
}  // namespace fsdp::kernels::fused_linear_test
