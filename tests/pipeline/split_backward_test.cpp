// A backward in two parts computes what one backward does, once, and keeps no more than its second part reads.
#include "fsdp/pipeline/split_backward.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/products/linear.h"
#include "tests/support/ranks.h"

namespace fsdp::pipeline {
namespace {

using torch::Tensor;

constexpr int64_t kRows = 6, kWidth = 8;

struct Case {
  std::string name;
  std::function<Tensor(const Tensor& x, const std::vector<Tensor>& weights)> forward;
};

std::vector<Case> cases() {
  const auto affine = [](const Tensor& x, const Tensor& weight, const Tensor& bias) {
    return torch::linear(x, weight, bias[0]);
  };
  return {{"layers",
           [=](const Tensor& x, const std::vector<Tensor>& w) {
             return affine(torch::gelu(affine(x, w[0], w[1])), w[2], w[1]) + x;
           }},
          {"our product",
           [](const Tensor& x, const std::vector<Tensor>& w) {
             return kernels::linear(torch::silu(kernels::linear(x, w[0])), w[1]);
           }},
          {"a weight twice",
           [](const Tensor& x, const std::vector<Tensor>& w) {
             return torch::tanh(x.matmul(w[0])).matmul(w[0].t()) * w[1][0];
           }},
          {"a norm",
           [](const Tensor& x, const std::vector<Tensor>& w) {
             return torch::layer_norm(x.matmul(w[0]), {kWidth}, w[1][0], w[2][0]);
           }},
          {"weights that are computed",
           [](const Tensor& x, const std::vector<Tensor>& w) {
             return x.matmul((w[0] * w[1]).to(torch::kDouble).to(torch::kFloat)) + (w[2] * 2).sum();
           }},
          {"written into",
           [](const Tensor& x, const std::vector<Tensor>& w) {
             Tensor y = x * 2;
             y.narrow(1, 0, 2).mul_(w[0].narrow(0, 0, 1).narrow(1, 0, 2));
             return y.add_(x.matmul(w[1]));
           }},
          {"several results",
           [](const Tensor& x, const std::vector<Tensor>& w) {
             const auto parts = (x * w[0][0]).chunk(2, 1);
             return torch::cat({parts[0].matmul(w[1].narrow(0, 0, kWidth / 2).narrow(1, 0, kWidth / 2)), parts[1]}, 1);
           }},
          {"without the input", [](const Tensor&, const std::vector<Tensor>& w) { return w[0].matmul(w[1]); }},
          {"without weights", [](const Tensor& x, const std::vector<Tensor>&) { return torch::gelu(x); }}};
}

struct Operands {
  explicit Operands(uint64_t seed) {
    const at::Generator numbers = testing::generator(seed);
    const auto draw = [&](int64_t rows) { return torch::randn({rows, kWidth}, numbers); };
    x = draw(kRows).requires_grad_();
    for (int i = 0; i < 3; ++i) weights.push_back(draw(kWidth).requires_grad_());
    gradient_rows = draw(kWidth);
  }
  Tensor gradient_of(const Tensor& y) const { return gradient_rows.narrow(0, 0, y.size(0)); }

  Tensor x, gradient_rows;
  std::vector<Tensor> weights;
};

void expect_equal(const Tensor& actual, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (actual.defined()) {
    EXPECT_TRUE(torch::equal(actual, expected)) << what;
  }
}

TEST(SplitBackward, GradientsAreThoseOfOneBackwardBitForBit) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    const Operands whole(5), split(5);
    const Tensor expected = one.forward(whole.x, whole.weights);
    expected.backward(whole.gradient_of(expected));

    InputPart part;
    {
      const Tensor y = one.forward(split.x, split.weights);
      part = run_input_part(y, split.gradient_of(y), split.x);
    }
    expect_equal(part.gradient, whole.x.grad(), "input");
    EXPECT_FALSE(split.x.grad().defined());
    for (const Tensor& weight : split.weights) EXPECT_FALSE(weight.grad().defined());
    run_weights_part(part.rest);
    for (size_t i = 0; i < split.weights.size(); ++i)
      expect_equal(split.weights[i].grad(), whole.weights[i].grad(), "weight " + std::to_string(i));
  }
}

// Of products in what `function` does, on this thread.
int64_t products_in(const std::function<void()>& function) {
  static thread_local int64_t count;
  count = 0;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& call) {
                                                   const std::string name = call.name();
                                                   if (name == "aten::mm" || name == "aten::addmm") ++count;
                                                   return std::unique_ptr<at::ObserverContext>();
                                                 }).scopes({at::RecordScope::FUNCTION}));
  function();
  at::removeCallback(handle);
  return count;
}

TEST(SplitBackward, NoProductIsComputedTwice) {
  const Case layers = cases().front();
  const Operands operands(6);
  const Tensor whole = layers.forward(operands.x, operands.weights);
  EXPECT_EQ(products_in([&] { whole.backward(operands.gradient_of(whole)); }), 4);
  const Tensor y = layers.forward(operands.x, operands.weights);
  InputPart part;
  EXPECT_EQ(products_in([&] { part = run_input_part(y, operands.gradient_of(y), operands.x); }), 2);
  EXPECT_EQ(products_in([&] { run_weights_part(part.rest); }), 2);
}

// What a product's weight needs is its input; what lies between two products goes.
TEST(SplitBackward, WhatNoWeightNeedsIsGivenBack) {
  const Operands operands(7);
  c10::weak_intrusive_ptr<c10::TensorImpl> before_gelu(Tensor().getIntrusivePtr()), after_gelu = before_gelu;
  InputPart part;
  {
    const Tensor hidden = operands.x.matmul(operands.weights[0]);
    const Tensor active = torch::gelu(hidden);
    const Tensor y = active.matmul(operands.weights[1]);
    before_gelu = hidden.getIntrusivePtr();
    after_gelu = active.getIntrusivePtr();
    part = run_input_part(y, operands.gradient_of(y), operands.x);
  }
  EXPECT_TRUE(before_gelu.expired());
  EXPECT_FALSE(part.rest.edges.empty());
  run_weights_part(part.rest);
  part = {};
  EXPECT_TRUE(after_gelu.expired());
}

}  // namespace
}  // namespace fsdp::pipeline
