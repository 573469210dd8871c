#include "kernels/operators/swiglu.h"

#include "tests/cuda/as_on_cpu.h"

namespace fsdp::kernels::swiglu_test {
namespace {

TEST(CudaSwiGlu, EqualsCpu) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& shape :
         std::vector<std::vector<int64_t>>{{1}, {7}, {8}, {3, 33}, {2, 5, 64}, {1000, 1001}, {0, 4}}) {
      expect_as_on_cpu([](const Inputs& in) { return swiglu(in[0], in[1]); },
                       {3 * values(shape, dtype), values(shape, dtype)}, tolerance_of(dtype),
                       c10::str(dtype, " ", shape));
    }
  }
}

TEST(CudaSwiGlu, TakesViewsAndLargeValues) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    expect_as_on_cpu(
        [](const Inputs& in) {
          return swiglu(shifted(in[0], {9, 40}), in[1].transpose(0, 1));
        },
        {values({361}, dtype), values({40, 9}, dtype)}, tolerance_of(dtype), c10::str(dtype, " views"));
    expect_as_on_cpu([](const Inputs& in) { return swiglu(in[0], in[1]); },
                     {at::linspace(-100, 100, 64).to(dtype), at::ones({64}, dtype)}, tolerance_of(dtype),
                     c10::str(dtype, " large"));
  }
}

// As gate and up lie in the result of one product; widths that are whole packets and not.
TEST(CudaSwiGlu, TakesColumnsOfOneTensor) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(3);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {1, 7, 64, 2056}) {
      expect_as_on_cpu(
          [&](const Inputs& in) { return swiglu(in[0].narrow(2, 0, width), in[0].narrow(2, width, width)); },
          {values({3, 50, 2 * width}, dtype)}, tolerance_of(dtype), c10::str(dtype, " ", width));
    }
    // More rows than a grid has along y.
    expect_as_on_cpu([&](const Inputs& in) { return swiglu(in[0].narrow(1, 0, 8), in[0].narrow(1, 8, 8)); },
                     {values({70000, 16}, dtype)}, tolerance_of(dtype), c10::str(dtype, " many rows"));
  }
}

}  // namespace
}  // namespace fsdp::kernels::swiglu_test
