#include "kernels/sum_squares.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/simd.h"

namespace fsdp::kernels {
namespace {

// Short enough that an fp32 sum of squares keeps its digits, long enough that widening costs nothing.
constexpr int64_t kBlock = 1024;

FSDP_SIMD_CLONES double sum_squares_of_floats(const float* values, int64_t n) {
  double total = 0;
  int64_t i = 0;
  while (i + simd::kLanes <= n) {
    const int64_t end = std::min(n - n % simd::kLanes, i + kBlock);
    simd::Float sum{};
    for (; i < end; i += simd::kLanes) {
      const simd::Float value = simd::load(values + i);
      sum += value * value;
    }
    total += simd::sum(sum);
  }
  for (; i < n; ++i) total += static_cast<double>(values[i]) * values[i];
  return total;
}

}  // namespace

double sum_squares(const at::Tensor& values) {
  if (values.numel() == 0) return 0;
  if (values.device().is_cpu() && values.scalar_type() == at::kFloat && values.is_contiguous()) {
    return sum_squares_of_floats(values.const_data_ptr<float>(), values.numel());
  }
  return values.to(at::kDouble).square().sum().item<double>();
}

}  // namespace fsdp::kernels
