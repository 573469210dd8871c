#include "kernels/operators/rope.h"

#include "kernels/products/fused_linear.h"
#include "tests/cuda/as_on_cpu.h"

namespace fsdp::kernels::rope_test {
namespace {

// q and k side by side, so that one result tells of both.
at::Tensor turned(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin) {
  const auto [a, b] = apply_rope(q, k, cos.detach(), sin.detach());
  return at::cat({a, b}, 2);
}

struct Case {
  int64_t rows, length, heads, key_heads, dim;
};

TEST(CudaRope, EqualsCpu) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Case& c : std::vector<Case>{{1, 1, 1, 1, 2},
                                           {2, 5, 4, 2, 10},
                                           {3, 7, 3, 1, 64},
                                           {2, 65, 16, 4, 128},
                                           {1, 9, 2, 2, 48},
                                           {0, 4, 2, 1, 8},
                                           {2, 0, 2, 1, 8}}) {
      for (const bool per_row : {false, true}) {
        std::vector<int64_t> table = {c.length, c.dim};
        if (per_row) table.insert(table.begin(), c.rows);
        expect_as_on_cpu(
            [](const Inputs& in) { return turned(in[0], in[1], in[2], in[3]); },
            {values({c.rows, c.length, c.heads, c.dim}, dtype), values({c.rows, c.length, c.key_heads, c.dim}, dtype),
             values(table, dtype).cos(), values(table, dtype).sin()},
            tolerance_of(dtype), c10::str(dtype, " ", c.length, " x ", c.dim));
      }
    }
  }
}

// As q and k lie in the result of one product.
TEST(CudaRope, TakesHeadsOfOneTensor) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t shift : {0, 1}) {
      expect_as_on_cpu(
          [&](const Inputs& in) {
            const at::Tensor qkv = in[0].narrow(3, shift, 16);
            return turned(qkv.narrow(2, 0, 4), qkv.narrow(2, 4, 2), in[1], in[2]);
          },
          {values({2, 9, 8, 24}, dtype), values({9, 16}, dtype), values({9, 16}, dtype)}, tolerance_of(dtype),
          c10::str(dtype, " shifted by ", shift));
    }
  }
}

TEST(CudaRope, InPlaceEqualsCpu) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(3);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t dim : {10, 64}) {
      expect_as_on_cpu(
          [&](const Inputs& in) {
            const auto weights = {in[1].narrow(0, 0, 4 * dim), in[1].narrow(0, 4 * dim, 2 * dim)};
            auto qk = fused_linear(in[0], weights);
            apply_rope_(qk[0], qk[1], in[2].detach(), in[3].detach());
            return at::cat(qk, 2);
          },
          {values({2, 9, 32}, dtype), values({6 * dim, 32}, dtype) / 6, values({9, dim}, dtype).cos(),
           values({9, dim}, dtype).sin()},
          2 * tolerance_of(dtype), c10::str(dtype, " ", dim));
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels::rope_test
