#include "kernels/products/linear.h"

#include <algorithm>

#include "fsdp/cuda/devices.h"
#include "kernels/products/fp8_linear.h"
#include "kernels/products/fused_linear.h"
#include "kernels/products/grouped_linear.h"
#include "kernels/products/linear_parts.h"
#include "tests/cuda/as_on_cpu.h"

namespace fsdp::kernels::linear_test {
namespace {

TEST(CudaLinear, EqualsCpu) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& shape :
         std::vector<std::vector<int64_t>>{{1, 1}, {7, 5}, {2, 3, 16}, {3, 40, 33}, {1, 300, 256}, {0, 8}, {2, 0, 8}}) {
      for (const int64_t out : {1, 16, 37})
        expect_as_on_cpu([](const Inputs& in) { return kernels::linear(in[0], in[1]); },
                         {values(shape, dtype), values({out, shape.back()}, dtype)}, tolerance_of(dtype),
                         c10::str(dtype, " ", shape, " -> ", out));
    }
  }
}

TEST(CudaLinear, TakesViewsAndMixedDtypesWithoutGradients) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(2);
  expect_as_on_cpu(
      [](const Inputs& in) {
        return kernels::linear(in[0].transpose(0, 1), shifted(in[1], {7, 10}));
      },
      {values({6, 4, 10}, at::kFloat), values({71}, at::kFloat)}, 4e-6, "views");
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::randn({3, 16}), weight = at::randn({5, 16}).to(at::kBFloat16);
  const at::Tensor y = kernels::linear(x.to(kGpu), weight.to(kGpu)).cpu();
  EXPECT_LE(relative_difference(y, kernels::linear(x, weight)), 4e-6);
}

TEST(CudaLinear, FusedEqualsCpu) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(6);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{1, 16}, {2, 9, 48}, {3, 67, 33}}) {
      expect_as_on_cpu(
          [](const Inputs& in) {
            const at::Tensor& buffer = in[1];
            const auto results = fused_linear(in[0], {buffer.narrow(0, 0, 32), buffer.narrow(0, 32, 16)});
            return at::cat({results[1], results[0]}, -1);
          },
          {values(shape, dtype), values({48, shape.back()}, dtype)}, tolerance_of(dtype), c10::str(dtype, " ", shape));
    }
  }
}

// Tensor cores of Hopper add products of fp8 numbers up with about 13 bits behind the point of the largest, not in fp32
// as the CPU does (measured: at most 2.6e-4 of the largest result for sums of 256).
TEST(CudaLinear, Fp8EqualsCpu) {
  FSDP_NEEDS_GPU();
  if (fsdp::cuda::devices().front().compute_capability < 89) GTEST_SKIP() << "needs a GPU with products of fp8 numbers";
  torch::manual_seed(7);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Fp8Recipe recipe : {Fp8Recipe::kTensorwise, Fp8Recipe::kRowwise}) {
      for (const auto& shape : std::vector<std::vector<int64_t>>{{1, 16}, {3, 67, 48}, {128, 256}, {0, 32}})
        expect_as_on_cpu([recipe](const Inputs& in) { return fp8_linear(in[0], in[1], recipe); },
                         {values(shape, dtype), values({64, shape.back()}, dtype)}, std::max(1e-3, tolerance_of(dtype)),
                         c10::str(dtype, " ", name(recipe), " ", shape));
    }
  }
  EXPECT_THROW(fp8_linear(at::randn({2, 32}, kGpu), at::randn({32, 32}, kGpu), Fp8Recipe::kMx), c10::Error);
}

TEST(CudaLinear, GroupsOfExpertsEqualCpu) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(8);
  for (const auto& rows : std::vector<std::vector<int64_t>>{{3, 5, 2}, {0, 13, 0}, {7, 0, 64}, {16, 0, 0}}) {
    const int64_t count = rows[0] + rows[1] + rows[2];
    expect_as_on_cpu([&rows](const Inputs& in) { return grouped_linear(in[0], rows, in[1]); },
                     {values({count, 24}, at::kBFloat16), values({3, 40, 24}, at::kBFloat16)},
                     tolerance_of(at::kBFloat16), c10::str("rows ", at::IntArrayRef(rows)));
  }
}

TEST(CudaLinear, FillsSlotsInFp32) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(3);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t tokens : {0, 1, 33, 200}) {
      for (const int64_t inputs : {1, 21, 64}) {
        for (const bool adds : {false, true}) {
          const at::Tensor grad = values({tokens, 37}, dtype), x = values({tokens, inputs}, dtype);
          const at::Tensor before = at::randn({37, inputs});
          const at::Tensor target = (adds ? before : at::full_like(before, NAN)).to(kGpu);
          fill_weight_gradient({target, adds, 0.5, {}}, grad.to(kGpu), x.to(kGpu));
          const at::Tensor exact = 0.5 * grad.to(at::kDouble).t().mm(x.to(at::kDouble)) + (adds ? 1 : 0) * before;
          // bf16 operands multiply exactly in fp32: there is nothing to round but the sum.
          EXPECT_LE(relative_difference(target.cpu(), exact), 1e-5)
              << dtype << " " << tokens << " tokens, " << inputs << " inputs, adds " << adds;
        }
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels::linear_test
