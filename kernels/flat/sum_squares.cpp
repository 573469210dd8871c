#include "kernels/flat/sum_squares.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>

#include "kernels/flat/flat_kernels.h"
#include "kernels/raw/flat/sum_squares.h"

namespace fsdp::kernels {

double sum_squares(const at::Tensor& values) {
  if (values.numel() == 0) return 0;
  if (is_cpu_float(values)) return raw::sum_squares(values.const_data_ptr<float>(), values.numel());
  return sum_squares_on_device(values).item<double>();
}

double sum_squares(const at::Tensor& values, double before) {
  TORCH_INTERNAL_ASSERT(is_cpu_float(values), "a sum that is continued");
  return values.numel() == 0 ? before : raw::sum_squares(values.const_data_ptr<float>(), values.numel(), before);
}

at::Tensor sum_squares_on_device(const at::Tensor& values) {
  if (is_cpu_float(values)) return at::scalar_tensor(sum_squares(values), at::kDouble);
  const FlatKernels* kernels = values.is_cpu() ? nullptr : find_flat_kernels({values});
  return kernels != nullptr ? kernels->sum_squares(values) : values.to(at::kDouble).square().sum();
}

// Of other types than fp32 each square, so that no block is needed.
void add_squares(ExactSum& sum, const at::Tensor& values) {
  const int64_t numel = values.numel();
  if (numel == 0) return;
  if (is_cpu_float(values)) {
    const auto* data = values.const_data_ptr<float>();
    for (int64_t i = 0; i < numel; i += kSquaresBlock) {
      sum.add(raw::sum_squares(data + i, std::min(kSquaresBlock, numel - i)));
    }
    return;
  }
  const at::Tensor wide = values.to(at::kDouble);
  const auto* data = wide.const_data_ptr<double>();
  for (int64_t i = 0; i < numel; ++i) sum.add(data[i] * data[i]);
}

}  // namespace fsdp::kernels
