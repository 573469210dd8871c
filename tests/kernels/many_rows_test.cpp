#include "kernels/products/many_rows.h"

#include <ATen/Parallel.h>

#include "kernels/products/linear.h"
#include "kernels/products/rowwise_scope.h"
#include "tests/kernels/compare.h"

namespace fsdp::kernels::many_rows_test {
namespace {

TEST(ManyRows, EqualsTheProductInDoublePrecision) {
  torch::manual_seed(1);
  for (const ProductTypes& types : kProductTypes) {
    for (const int64_t rows : {1, 15, 16, 33, 64, 65, 130, 600}) {
      for (const int64_t k : {1, 2, 31, 32, 100, 576, 2500}) {
        for (const int64_t n : {1, 16, 47, 48, 130}) {
          const at::Tensor x = values({rows, k}, types.x), weight = values({n, k}, types.weight);
          ASSERT_TRUE(fits_many_rows(x, weight));
          const at::Tensor y = many_rows_product(x, weight);
          EXPECT_EQ(y.scalar_type(), types.x);
          const at::Tensor expected = at::mm(x.to(at::kDouble), weight.to(at::kDouble).t());
          EXPECT_LE(relative_difference(y, expected), types.x == at::kFloat ? 1e-5 : 5e-3)
              << types.x << " " << rows << " x " << k << " -> " << n;
        }
      }
    }
  }
}

TEST(ManyRows, ARowDependsOnNothingBesideIt) {
  torch::manual_seed(2);
  const int threads = at::get_num_threads();
  for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{{300, 201}, {320, 1500}, {330, 576}, {330, 2048}}) {
    for (const ProductTypes& types : kProductTypes) {
      const at::Tensor x = values({700, k}, types.x), weight = values({n, k}, types.weight);
      const at::Tensor all = many_rows_product(x, weight);
      at::set_num_threads(3);
      EXPECT_TRUE(at::equal(many_rows_product(x, weight), all));
      at::set_num_threads(1);
      for (const int64_t count : {1, 3, 16, 17, 48, 64, 100, 513}) {
        const at::Tensor some = many_rows_product(x.slice(0, 5, 5 + count).contiguous(), weight);
        EXPECT_TRUE(at::equal(some, all.slice(0, 5, 5 + count))) << types.x << " " << n << " " << count;
      }
      at::set_num_threads(threads);
    }
  }
}

TEST(ManyRows, LinearUsesItInTheInnermostScopeWithoutGradientsOnly) {
  torch::manual_seed(3);
  const at::Tensor x = values({2, 3, 64}, at::kFloat), weight = values({40, 64}, at::kFloat).requires_grad_();
  const RowwiseScope few(Rowwise::kFewRows);
  {
    const RowwiseScope many(Rowwise::kManyRows);
    EXPECT_TRUE(kernels::linear(x, weight).requires_grad());
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(kernels::linear(x, weight), many_rows_product(x, weight)));
    EXPECT_EQ(kernels::linear(x, weight).sizes(), at::IntArrayRef({2, 3, 40}));
    EXPECT_THROW(kernels::linear(x, weight.narrow(1, 0, 63)), c10::Error);
  }
  EXPECT_TRUE(RowwiseScope::is(Rowwise::kFewRows));
  EXPECT_FALSE(RowwiseScope::is(Rowwise::kManyRows));
}

TEST(ManyRows, WhatDoesNotFit) {
  const at::Tensor weight = at::ones({8, 16});
  EXPECT_FALSE(fits_many_rows(at::ones({2, 15}), weight));
  EXPECT_FALSE(fits_many_rows(at::ones({0, 16}), weight));
  EXPECT_FALSE(fits_many_rows(at::ones({16, 2}).t(), weight));
  EXPECT_FALSE(fits_many_rows(at::ones({2, 16}, at::kDouble), weight));
  EXPECT_FALSE(fits_many_rows(at::ones({2, 16}, at::kBFloat16), weight));
}

}  // namespace
}  // namespace fsdp::kernels::many_rows_test
