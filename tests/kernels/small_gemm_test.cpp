#include "kernels/small_gemm.h"

#include "tests/kernels/compare.h"

namespace fsdp::kernels {
namespace {

TEST(SmallGemm, EqualsMatmul) {
  torch::manual_seed(1);
  for (const int64_t m : {1, 3, 4, 64, 70}) {
    for (const int64_t n : {16, 32, 48, 64, 80, 128}) {
      for (const int64_t k : {0, 1, 5, 64}) {
        for (const bool transposed : {false, true}) {
          const at::Tensor a = transposed ? at::randn({k, m}).t() : at::randn({m, k + 2}).narrow(1, 1, k);
          const at::Tensor b = at::randn({k, n + 16}).narrow(1, 0, n), start = at::randn({m, n + 5});
          const LeftOperand left = {a.const_data_ptr<float>(), a.stride(0), a.stride(1)};
          for (const bool add : {false, true}) {
            const at::Tensor c = start.clone();
            small_gemm(m, n, k, left, b.const_data_ptr<float>(), b.stride(0), c.data_ptr<float>(), c.stride(0), add);
            const at::Tensor expected = at::matmul(a, b) + (add ? start.narrow(1, 0, n) : at::zeros({m, n}));
            EXPECT_LE(relative_difference(c.narrow(1, 0, n), expected), 4e-6) << m << " " << n << " " << k;
            EXPECT_TRUE(at::equal(c.narrow(1, n, 5), start.narrow(1, n, 5)));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels
