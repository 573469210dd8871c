#include "kernels/pair_gemm.h"

#include <ATen/ATen.h>

#include "tests/kernels/compare.h"

namespace fsdp::kernels {
namespace {

// [rows, 2 pairs] bf16 -> pairs along the columns, [rows, pairs].
const Bf16Pair* pairs_of(const at::Tensor& x) { return static_cast<const Bf16Pair*>(x.const_data_ptr()); }

TEST(PairGemm, EqualsMatmul) {
  if (!has_pair_gemm()) GTEST_SKIP() << "this processor does not multiply pairs of bf16";
  torch::manual_seed(1);
  for (const int64_t m : {1, 2, 5, 6, 7, 64}) {
    for (const int64_t n : {16, 48, 64, 80, 128}) {
      for (const int64_t pairs : {0, 1, 8, 33}) {
        const at::Tensor a = at::randn({m, 2 * pairs}).to(at::kBFloat16),
                         b = at::randn({2 * pairs, n}).to(at::kBFloat16);
        const at::Tensor b_pairs = b.view({pairs, 2, n}).transpose(1, 2).contiguous();  // [pairs, n, 2]
        const at::Tensor start = at::randn({m, n + 16}), expected = at::matmul(a.to(at::kFloat), b.to(at::kFloat));
        for (const bool add : {false, true}) {
          const at::Tensor c = start.clone();
          pair_gemm(m, n, pairs, {pairs_of(a), pairs, 1}, pairs_of(b_pairs), n, c.mutable_data_ptr<float>(), n + 16,
                    add);
          const at::Tensor sum = add ? expected + start.narrow(1, 0, n) : expected;
          EXPECT_LT((c.narrow(1, 0, n) - sum).abs().max().item<float>(), 1e-4) << m << " x " << n << " x " << pairs;
          EXPECT_TRUE(at::equal(c.narrow(1, n, 16), start.narrow(1, n, 16)));  // nothing beyond n is written
        }
      }
    }
  }
}

// A left operand whose rows lie beside each other, as in a transposed block.
TEST(PairGemm, TakesTransposedOperands) {
  if (!has_pair_gemm()) GTEST_SKIP() << "this processor does not multiply pairs of bf16";
  torch::manual_seed(2);
  const int64_t m = 13, n = 32, pairs = 9;
  const at::Tensor a = at::randn({m, 2 * pairs}).to(at::kBFloat16), b = at::randn({2 * pairs, n}).to(at::kBFloat16);
  const at::Tensor columns = a.view({m, pairs, 2}).transpose(0, 1).contiguous();  // [pairs, m, 2]
  const at::Tensor b_pairs = b.view({pairs, 2, n}).transpose(1, 2).contiguous(), c = at::empty({m, n});
  pair_gemm(m, n, pairs, {pairs_of(columns), 1, m}, pairs_of(b_pairs), n, c.mutable_data_ptr<float>(), n, false);
  EXPECT_LT((c - at::matmul(a.to(at::kFloat), b.to(at::kFloat))).abs().max().item<float>(), 1e-4);
}

}  // namespace
}  // namespace fsdp::kernels
