#include "kernels/operators/swiglu.h"

#include "tests/kernels/compare.h"
#include "tests/kernels/second_derivative.h"

namespace fsdp::kernels::swiglu_test {
namespace {

at::Tensor reference(const Inputs& in) { return at::silu(in[0]) * in[1]; }

at::Tensor kernel(const Inputs& in) { return swiglu(in[0], in[1]); }

TEST(SwiGlu, EqualsComposite) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& shape :
         std::vector<std::vector<int64_t>>{{1}, {15}, {16}, {3, 17}, {2, 5, 64}, {130, 257}, {0}, {4, 0}})
      expect_same(kernel, reference, {3 * values(shape, dtype), values(shape, dtype)}, tolerance_of(dtype),
                  c10::str(dtype, " ", shape));
  }
}

TEST(SwiGlu, TakesNonContiguousInputs) {
  torch::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    expect_same([](const Inputs& in) { return swiglu(in[0].t(), in[1].slice(1, 0, 14, 2)); },
                [](const Inputs& in) { return at::silu(in[0].t()) * in[1].slice(1, 0, 14, 2); },
                {values({7, 9}, dtype), values({9, 14}, dtype)}, tolerance_of(dtype), c10::str(dtype));
  }
}

// As gate and up lie in the result of one product: the bits of dense inputs, without copies.
TEST(SwiGlu, TakesColumnsOfOneTensor) {
  torch::manual_seed(4);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {1, 16, 40, 1031}) {
      const at::Tensor both = values({3, 5, 2 * width}, dtype), grad = values({3, 5, width}, dtype);
      const auto run = [&](at::Tensor gate, at::Tensor up) {
        gate.requires_grad_();
        up.requires_grad_();
        const at::Tensor y = swiglu(gate, up);
        const auto grads = torch::autograd::grad({y}, {gate, up}, {grad});
        return Inputs{y, grads[0], grads[1]};
      };
      const at::Tensor gate = both.narrow(2, 0, width), up = both.narrow(2, width, width);
      const Inputs actual = run(gate.detach(), up.detach()), expected = run(gate.clone(), up.clone());
      for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << dtype << " " << width;
      EXPECT_TRUE(actual[0].is_contiguous());
      EXPECT_TRUE(actual[1].is_alias_of(actual[2]));
      EXPECT_EQ(actual[2].storage_offset(), width);
    }
  }
}

TEST(SwiGlu, SaturatesWithoutNan) {
  const at::Tensor gate = at::tensor({-1e30f, -200.0f, -88.0f, 0.0f, 88.0f, 200.0f, 1e30f});
  expect_same(kernel, reference, {gate, at::ones({7})}, 1e-6, "extremes");
  EXPECT_TRUE(swiglu(at::full({1}, NAN), at::ones({1})).isnan().all().item<bool>());
}

TEST(SwiGlu, RefusesWhatDoesNotFit) {
  EXPECT_THROW(swiglu(at::ones({2}), at::ones({3})), c10::Error);
  EXPECT_THROW(swiglu(at::ones({2}), at::ones({2}, at::kBFloat16)), c10::Error);
}

TEST(SwiGlu, HasFirstDerivativesOnly) {
  torch::manual_seed(5);
  expect_first_derivatives_only(kernel, {values({3, 17}, at::kFloat), values({3, 17}, at::kFloat)}, "swiglu");
}

}  // namespace
}  // namespace fsdp::kernels::swiglu_test
