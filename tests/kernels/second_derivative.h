// What operators without second derivatives promise to who records a graph of gradients.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "tests/kernels/compare.h"

namespace fsdp::kernels {

inline std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

// That the graph changes no gradient, and that who differentiates one again hears of `op`: also where the first
// gradient was a constant, where somebody asks for the gradients of some inputs, and where those have another way to
// what is differentiated. All inputs are leaves of `function`.
inline void expect_first_derivatives_only(const Differentiable& function, const Inputs& inputs, const std::string& op) {
  const std::string expected = "[" + op + "] got a gradient of a gradient, expected first derivatives only";
  for (const bool is_constant : {false, true}) {
    Inputs leaves;
    for (const at::Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_());
    const at::Tensor y = function(leaves).to(at::kFloat);
    const at::Tensor loss = is_constant ? y.sum() : y.square().sum();
    const auto gradients_of = [&](const at::Tensor& of, bool create_graph) {
      return torch::autograd::grad({of}, leaves, {}, /*retain_graph=*/true, create_graph, /*allow_unused=*/true);
    };
    const Inputs plain = gradients_of(loss, false), recorded = gradients_of(loss, true);
    at::Tensor penalty = at::zeros({});
    for (size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_LE(relative_difference(recorded[i], plain[i]), 1e-6) << op << ", gradient " << i;
      EXPECT_FALSE(plain[i].requires_grad()) << op << ", gradient " << i;
      EXPECT_TRUE(recorded[i].requires_grad()) << op << ", gradient " << i;
      penalty = penalty + recorded[i].square().sum().to(at::kFloat);
    }
    for (const at::Tensor& gradient : recorded) {
      const at::Tensor own = gradient.square().sum().to(at::kFloat);
      EXPECT_NE(error_of([&] { gradients_of(own + loss, false); }).find(expected), std::string::npos) << op;
    }
    EXPECT_NE(error_of([&] { gradients_of(penalty, false); }).find(expected), std::string::npos) << op;
    EXPECT_NE(error_of([&] { (loss + penalty).backward({}, /*retain_graph=*/true); }).find(expected), std::string::npos)
        << op;
  }
}

}  // namespace fsdp::kernels
