#include "kernels/flat/sum_squares.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>

#include "kernels/flat/flat_kernels.h"
#include "kernels/raw/flat/sum_squares.h"

namespace fsdp::kernels {

double sum_squares(const at::Tensor& values) {
  if (values.numel() == 0) return 0;
  if (is_cpu_float(values)) return raw::sum_squares(values.const_data_ptr<float>(), values.numel());
  return sum_squares_on_device(values).item<double>();
}

at::Tensor sum_squares_on_device(const at::Tensor& values) {
  if (is_cpu_float(values)) return at::scalar_tensor(sum_squares(values), at::kDouble);
  const FlatKernels* kernels = values.is_cpu() ? nullptr : find_flat_kernels({values});
  return kernels != nullptr ? kernels->sum_squares(values) : values.to(at::kDouble).square().sum();
}

}  // namespace fsdp::kernels
