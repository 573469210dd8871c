#include "kernels/sum_squares.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/flat_kernels.h"
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

bool is_plain_float(const at::Tensor& values) {
  return values.is_cpu() && values.scalar_type() == at::kFloat && values.is_contiguous();
}

}  // namespace

double sum_squares(const at::Tensor& values) {
  if (values.numel() == 0) return 0;
  if (is_plain_float(values)) return sum_squares_of_floats(values.const_data_ptr<float>(), values.numel());
  return sum_squares_on_device(values).item<double>();
}

at::Tensor sum_squares_on_device(const at::Tensor& values) {
  if (is_plain_float(values)) return at::scalar_tensor(sum_squares(values), at::kDouble);
  const FlatKernels* kernels = values.is_cpu() ? nullptr : find_flat_kernels({values});
  return kernels != nullptr ? kernels->sum_squares(values) : values.to(at::kDouble).square().sum();
}

}  // namespace fsdp::kernels
