#include "kernels/operators/rms_norm.h"

#include "tests/cuda/as_on_cpu.h"

namespace fsdp::kernels::rms_norm_test {
namespace {

at::Tensor norm(const Inputs& in) { return rms_norm(in[0], in[1], 1e-5); }

TEST(CudaRmsNorm, EqualsCpu) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(1);
  // Rows of one warp and of a block, odd ones, and one too wide for sums in shared memory.
  const std::vector<std::vector<int64_t>> shapes = {{1, 8},       {3, 5},     {2, 7, 16}, {1, 3, 33},   {40, 64},
                                                    {5, 2, 250},  {200, 512}, {70, 513},  {1000, 2048}, {3000, 128},
                                                    {9, 4, 4096}, {5, 20000}, {0, 8},     {2, 0, 8}};
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& shape : shapes) {
      expect_as_on_cpu(norm, {values(shape, dtype), 1 + 0.1 * values({shape.back()}, dtype)},
                       dtype == at::kFloat ? 1e-5 : tolerance_of(dtype), c10::str(dtype, " ", shape));
    }
  }
}

TEST(CudaAddRmsNorm, EqualsCpu) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(3);
  const auto both = [](const Inputs& in) {
    const auto [sum, y] = add_rms_norm(in[0], in[1], in[2], 1e-5);
    return at::cat({sum, y});
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& shape :
         std::vector<std::vector<int64_t>>{{1, 8}, {3, 5}, {40, 64}, {70, 513}, {1000, 2048}, {5, 20000}, {0, 8}}) {
      expect_as_on_cpu(both, {values(shape, dtype), values(shape, dtype), 1 + 0.1 * values({shape.back()}, dtype)},
                       dtype == at::kFloat ? 1e-5 : tolerance_of(dtype), c10::str(dtype, " ", shape));
    }
  }
}

TEST(CudaRmsNorm, TakesViews) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    expect_as_on_cpu([](const Inputs& in) { return rms_norm(in[0].transpose(0, 1), in[1].slice(0, 0, 40, 2), 1e-6); },
                     {values({3, 9, 20}, dtype), values({40}, dtype)}, 1.2e-2, c10::str(dtype, " strided"));
    expect_as_on_cpu(
        [](const Inputs& in) {
          return rms_norm(shifted(in[0], {30, 64}), shifted(in[1], {64}), 1e-6);
        },
        {values({30 * 64 + 1}, dtype), values({65}, dtype)}, 1.2e-2, c10::str(dtype, " shifted"));
  }
}

TEST(CudaRmsNorm, NamesDevicesThatDiffer) {
  FSDP_NEEDS_GPU();
  EXPECT_THROW(rms_norm(at::ones({2, 3}, kGpu), at::ones({3}), 1e-6), c10::Error);
  EXPECT_THROW(rms_norm(at::ones({2, 3}, kGpu), at::ones({4}, kGpu), 1e-6), c10::Error);
}

}  // namespace
}  // namespace fsdp::kernels::rms_norm_test
