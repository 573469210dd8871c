// Products of experts, all at once as a GPU does them and one after the other, against products in fp64.
#include "kernels/products/grouped_linear.h"

#include <numeric>

#include "tests/kernels/compare.h"
#include "tests/kernels/second_derivative.h"

namespace fsdp::kernels::grouped_linear_test {
namespace {

using Product = at::Tensor (*)(const at::Tensor&, const std::vector<int64_t>&, const at::Tensor&);

const std::vector<std::vector<int64_t>> kGroups = {{3, 5, 2}, {0, 10, 0}, {7, 0, 4}, {1, 1, 1}, {16, 0, 0}};

void expect_products_of_rows(Product product, at::ScalarType dtype, double tolerance) {
  torch::manual_seed(23);
  for (const auto& rows : kGroups) {
    const int64_t count = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    const at::Tensor x = at::randn({count, 24}).to(dtype).requires_grad_();
    const at::Tensor weights = at::randn({3, 16, 24}).to(dtype).requires_grad_(),
                     grad = at::randn({count, 16}).to(dtype);
    const at::Tensor y = product(x, rows, weights);
    y.backward(grad);
    int64_t begin = 0;
    for (int64_t i = 0; i < 3; begin += rows[static_cast<size_t>(i++)]) {
      const auto of_expert = [&](const at::Tensor& all) {
        return all.detach().narrow(0, begin, rows[static_cast<size_t>(i)]).to(at::kDouble);
      };
      const at::Tensor weight = weights.detach()[i].to(at::kDouble);
      EXPECT_LE(relative_difference(of_expert(y), of_expert(x).mm(weight.t())), tolerance) << at::IntArrayRef(rows);
      EXPECT_LE(relative_difference(of_expert(x.grad()), of_expert(grad).mm(weight)), tolerance)
          << at::IntArrayRef(rows);
      EXPECT_LE(relative_difference(weights.grad()[i].to(at::kDouble), of_expert(grad).t().mm(of_expert(x))), tolerance)
          << at::IntArrayRef(rows) << ", expert " << i;
    }
  }
}

TEST(GroupedLinear, EqualsProductsOfEachExpert) {
  expect_products_of_rows(grouped_linear, at::kDouble, 1e-14);
  expect_products_of_rows(grouped_linear, at::kFloat, 1e-6);
  expect_products_of_rows(grouped_linear, at::kBFloat16, 1e-2);
}

TEST(GroupedLinear, AtOnceEqualsProductsOfEachExpert) {
  expect_products_of_rows(grouped_linear_at_once, at::kFloat, 1e-6);
  expect_products_of_rows(grouped_linear_at_once, at::kBFloat16, 1e-2);
}

TEST(GroupedLinear, NamesWhatDoesNotFit) {
  const at::Tensor x = at::ones({4, 8}), weights = at::ones({2, 16, 8});
  EXPECT_THROW(grouped_linear(x, {1, 2}, weights), c10::Error);
  EXPECT_THROW(grouped_linear(x, {4}, weights), c10::Error);
  EXPECT_THROW(grouped_linear(at::ones({4, 9}), {2, 2}, weights), c10::Error);
}

TEST(GroupedLinear, AtOnceHasFirstDerivativesOnly) {
  torch::manual_seed(24);
  expect_first_derivatives_only(
      [](const Inputs& in) {
        return grouped_linear_at_once(in[0], {3, 0, 2}, in[1]);
      },
      {at::randn({5, 24}), at::randn({3, 16, 24})}, "grouped_linear");
}

}  // namespace
}  // namespace fsdp::kernels::grouped_linear_test
