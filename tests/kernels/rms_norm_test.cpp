#include "kernels/operators/rms_norm.h"

#include <ATen/record_function.h>

#include "tests/kernels/compare.h"
#include "tests/kernels/second_derivative.h"

namespace fsdp::kernels::rms_norm_test {
namespace {

// As in Hugging Face's LlamaRMSNorm.
at::Tensor reference(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  return weight * (wide * at::rsqrt(wide.pow(2).mean(-1, true) + eps)).to(x.scalar_type());
}

TEST(RmsNorm, EqualsComposite) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{
             {1, 8}, {3, 5}, {2, 7, 16}, {1, 3, 33}, {40, 64}, {5, 2, 250}, {200, 512}, {0, 8}, {2, 0, 8}}) {
      const int64_t width = shape.back();
      expect_same([](const Inputs& in) { return rms_norm(in[0], in[1], 1e-5); },
                  [](const Inputs& in) { return reference(in[0], in[1], 1e-5); },
                  {values(shape, dtype), 1 + 0.1 * values({width}, dtype)}, tolerance_of(dtype),
                  c10::str(dtype, " ", shape));
    }
  }
}

TEST(RmsNorm, TakesNonContiguousInputs) {
  torch::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    expect_same([](const Inputs& in) { return rms_norm(in[0].transpose(0, 1), in[1].slice(0, 0, 40, 2), 1e-6); },
                [](const Inputs& in) { return reference(in[0].transpose(0, 1), in[1].slice(0, 0, 40, 2), 1e-6); },
                {values({3, 9, 20}, dtype), values({40}, dtype)}, tolerance_of(dtype), c10::str(dtype));
  }
}

// The bits of the sum and of the norm, and of all gradients.
TEST(AddRmsNorm, EqualsTheTwoOperators) {
  torch::manual_seed(4);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& shape :
         std::vector<std::vector<int64_t>>{{1, 8}, {3, 5}, {2, 7, 16}, {40, 64}, {5, 2, 250}, {200, 512}, {0, 8}}) {
      const Inputs inputs = {values(shape, dtype), values(shape, dtype), 1 + 0.1 * values({shape.back()}, dtype)};
      const at::Tensor grad_sum = values(shape, dtype), grad_y = values(shape, dtype);
      const auto run = [&](bool fused) {
        Inputs leaves;
        for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_());
        at::Tensor sum, y;
        if (fused) {
          std::tie(sum, y) = add_rms_norm(leaves[0], leaves[1], leaves[2], 1e-5);
        } else {
          sum = leaves[0] + leaves[1];
          y = rms_norm(sum, leaves[2], 1e-5);
        }
        torch::autograd::backward({sum, y}, {grad_sum, grad_y});
        return Inputs{sum.detach(), y.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
      };
      const Inputs actual = run(true), expected = run(false);
      for (size_t i = 0; i < actual.size(); ++i)
        EXPECT_TRUE(at::equal(actual[i], expected[i])) << dtype << " " << shape << ", result " << i;
    }
  }
}

TEST(AddRmsNorm, TakesGradientsOfOneResultAndStridedInputs) {
  torch::manual_seed(5);
  const auto sum_only = [](const Inputs& in) { return add_rms_norm(in[0].t(), in[1], in[2], 1e-6).first; };
  const auto norm_only = [](const Inputs& in) { return add_rms_norm(in[0].t(), in[1], in[2], 1e-6).second; };
  const Inputs inputs = {values({20, 9}, at::kFloat), values({9, 20}, at::kFloat), values({20}, at::kFloat)};
  expect_same(
      norm_only, [](const Inputs& in) { return reference(in[0].t() + in[1], in[2], 1e-6); }, inputs,
      tolerance_of(at::kFloat), "norm only");
  const at::Tensor x = inputs[0].detach().clone().requires_grad_(),
                   weight = inputs[2].detach().clone().requires_grad_();
  sum_only({x, inputs[1], weight}).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::ones_like(x)));
  EXPECT_FALSE(weight.grad().defined());
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(norm_only(inputs), rms_norm(inputs[0].t() + inputs[1], inputs[2], 1e-6)));
  EXPECT_THROW(add_rms_norm(inputs[0], inputs[1], inputs[2], 1e-6), c10::Error);
  EXPECT_THROW(add_rms_norm(inputs[1], inputs[1].to(at::kBFloat16), inputs[2], 1e-6), c10::Error);
}

TEST(RmsNorm, DoesNotDependOnThreads) {
  torch::manual_seed(3);
  const at::Tensor x = at::randn({999, 65}), weight = at::randn({65});
  const int threads = at::get_num_threads();
  std::vector<Inputs> results;
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    const at::Tensor a = x.detach().requires_grad_(), w = weight.detach().requires_grad_();
    rms_norm(a, w, 1e-6).pow(2).sum().backward();
    results.push_back({a.grad(), w.grad()});
  }
  at::set_num_threads(threads);
  for (const Inputs& result : results) {
    EXPECT_TRUE(at::equal(result[0], results[0][0]));
    EXPECT_TRUE(at::equal(result[1], results[0][1]));
  }
}

std::vector<std::string>& seen() {
  static std::vector<std::string> names;
  return names;
}
const void* watched = nullptr;

std::unique_ptr<at::ObserverContext> note_reads(const at::RecordFunction& record) {
  for (const c10::IValue& value : record.inputs())
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().unsafeGetTensorImpl() == watched)
      seen().emplace_back(record.name());
  return nullptr;
}

// Touch-driven sharding rests on this: whoever reads a weight does so through an operator that gets the weight itself.
TEST(RmsNorm, ObserversSeeTheWeightInForwardAndBackward) {
  const at::Tensor x = at::randn({4, 8}).requires_grad_(), weight = at::ones({8}).requires_grad_();
  watched = weight.unsafeGetTensorImpl();
  seen().clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&note_reads).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  at::Tensor y = rms_norm(x, weight, 1e-6);
  const size_t in_forward = seen().size();
  y.sum().backward();
  at::removeCallback(handle);
  ASSERT_GE(in_forward, 1u);
  EXPECT_EQ(seen().front(), "fsdp::rms_norm");
  EXPECT_EQ(
      std::count(seen().begin() + static_cast<std::ptrdiff_t>(in_forward), seen().end(), "fsdp::rms_norm_backward"), 1);
}

TEST(RmsNorm, RefusesWhatDoesNotFit) {
  EXPECT_THROW(rms_norm(at::ones({2, 3}), at::ones({4}), 1e-6), c10::Error);
  EXPECT_THROW(rms_norm(at::ones({2, 3}), at::ones({3}, at::kBFloat16), 1e-6), c10::Error);
  EXPECT_THROW(rms_norm(at::ones({2, 3}, at::kDouble), at::ones({3}, at::kDouble), 1e-6), c10::Error);
}

TEST(RmsNorm, HasFirstDerivativesOnly) {
  torch::manual_seed(6);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Inputs inputs = {values({4, 9}, dtype), values({9}, dtype)};
    expect_first_derivatives_only([](const Inputs& in) { return rms_norm(in[0], in[1], 1e-5); }, inputs, "rms_norm");
    expect_first_derivatives_only(
        [](const Inputs& in) {
          const auto [sum, y] = add_rms_norm(in[0], in[1], in[2], 1e-5);
          return sum + y;
        },
        {inputs[0], values({4, 9}, dtype), inputs[1]}, "add_rms_norm");
  }
}

}  // namespace
}  // namespace fsdp::kernels::rms_norm_test
