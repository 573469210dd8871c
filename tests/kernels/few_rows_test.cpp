#include "kernels/products/few_rows.h"

#include <ATen/Parallel.h>

#include "kernels/products/linear.h"
#include "kernels/products/rowwise_scope.h"
#include "kernels/raw/attention/softmax_weights.h"
#include "tests/kernels/compare.h"

namespace fsdp::kernels::few_rows_test {
namespace {

TEST(FewRows, EqualsTheProductInDoublePrecision) {
  torch::manual_seed(1);
  for (const ProductTypes& types : kProductTypes) {
    for (const int64_t rows : {1, 2, 4, 7, 8, 17, 32}) {
      for (const int64_t k : {1, 5, 16, 31, 32, 33, 48, 100, 576}) {
        for (const int64_t n : {1, 7, 8, 16, 50, 112, 1000}) {
          const at::Tensor x = values({rows, k}, types.x), weight = values({n, k}, types.weight);
          ASSERT_TRUE(fits_few_rows(x, weight));
          const at::Tensor y = few_rows_product(x, weight);
          EXPECT_EQ(y.scalar_type(), types.x);
          const at::Tensor expected = at::mm(x.to(at::kDouble), weight.to(at::kDouble).t());
          EXPECT_LE(relative_difference(y, expected), types.x == at::kFloat ? 2e-6 : 5e-3)
              << types.x << " " << rows << " x " << k << " -> " << n;
        }
      }
    }
  }
}

TEST(FewRows, ARowDependsOnNothingBesideIt) {
  torch::manual_seed(2);
  const int threads = at::get_num_threads();
  for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{{999, 200}, {1008, 192}}) {
    for (const ProductTypes& types : kProductTypes) {
      const at::Tensor x = values({32, k}, types.x), weight = values({n, k}, types.weight);
      const at::Tensor all = few_rows_product(x, weight);
      at::set_num_threads(3);
      EXPECT_TRUE(at::equal(few_rows_product(x, weight), all));
      at::set_num_threads(1);
      for (const int64_t count : {1, 3, 4, 6, 16, 17, 31}) {
        const at::Tensor some = few_rows_product(x.slice(0, 1, 1 + count).contiguous(), weight);
        EXPECT_TRUE(at::equal(some, all.slice(0, 1, 1 + count))) << types.x << " " << n << " " << count;
      }
      at::set_num_threads(threads);
    }
  }
}

TEST(FewRows, LinearUsesItInItsScopeWithoutGradientsOnly) {
  torch::manual_seed(3);
  const at::Tensor x = values({2, 1, 64}, at::kFloat), weight = values({40, 64}, at::kFloat).requires_grad_();
  const at::Tensor trained = kernels::linear(x, weight).detach();
  const RowwiseScope scope(Rowwise::kFewRows);
  EXPECT_TRUE(kernels::linear(x, weight).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(kernels::linear(x, weight), few_rows_product(x, weight)));
  EXPECT_LE(relative_difference(trained, kernels::linear(x, weight)), 2e-6);
  EXPECT_EQ(kernels::linear(x, weight).sizes(), at::IntArrayRef({2, 1, 40}));
}

TEST(FewRows, NarrowWeightsAndManyRows) {
  torch::manual_seed(5);
  const at::NoGradGuard no_grad;
  const at::Tensor weight = values({3000, 96}, at::kBFloat16);
  for (const int64_t rows : {3, 128, 129, 300}) {
    const at::Tensor x = values({1, rows, 96}, at::kFloat);
    const at::Tensor expected = at::linear(x.to(at::kDouble), weight.to(at::kDouble));
    EXPECT_LE(relative_difference(kernels::linear(x, weight), expected), 2e-6) << rows;
  }
}

TEST(FewRows, WhatDoesNotFit) {
  const at::Tensor weight = at::ones({8, 16});
  EXPECT_FALSE(fits_few_rows(at::ones({kFewRows + 1, 16}), weight));
  EXPECT_FALSE(fits_few_rows(at::ones({2, 15}), weight));
  EXPECT_FALSE(fits_few_rows(at::ones({0, 16}), weight));
  EXPECT_FALSE(fits_few_rows(at::ones({16, 2}).t(), weight));
  EXPECT_FALSE(fits_few_rows(at::ones({2, 16}, at::kDouble), weight));
  EXPECT_FALSE(fits_few_rows(at::ones({2, 16}, at::kBFloat16), weight));
}

TEST(SoftmaxWeights, AreTheSoftmaxUpToAFactor) {
  torch::manual_seed(4);
  for (const int64_t count : {1, 15, 16, 17, 1000}) {
    const at::Tensor x = values({count}, at::kFloat) * 5;
    at::Tensor weights = at::empty({count});
    const int64_t best =
        raw::softmax_weights(x.const_data_ptr<float>(), count, 0.5f, weights.mutable_data_ptr<float>());
    EXPECT_EQ(best, x.argmax().item<int64_t>());
    EXPECT_LE(relative_difference(weights / weights.sum(), at::softmax(x.to(at::kDouble) / 2, 0)), 1e-6);
  }
}

TEST(SoftmaxWeights, WhatIsNoNumberIsImpossible) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {nan, 1, -inf, 1, nan};
  std::vector<float> weights(x.size(), 7);
  EXPECT_EQ(raw::softmax_weights(x.data(), 5, 1, weights.data()), 1);
  EXPECT_EQ(weights, (std::vector<float>{0, 1, 0, 1, 0}));
  const std::vector<float> none = {nan, -inf};
  EXPECT_EQ(raw::softmax_weights(none.data(), 2, 1, weights.data()), -1);
}

}  // namespace
}  // namespace fsdp::kernels::few_rows_test
