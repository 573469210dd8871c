// cached_attention.h on devices, of operators that every device has. For its two functions only.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace fsdp::kernels {

// The positions that a query at `position` sees begin here.
inline int64_t first_visible(int64_t position, int64_t window) {
  return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
}

// As store_in_cache(), whose checks have passed.
void store_on_device(const at::Tensor& x_BTKD, const at::Tensor& cache_RKCW, at::IntArrayRef rows,
                     at::IntArrayRef starts);

// As cached_attention(), whose checks have passed; at least one row.
at::Tensor attend_on_device(const at::Tensor& q_BTHD, const at::Tensor& k_RKCW, const at::Tensor& v_RKCW,
                            at::IntArrayRef rows, at::IntArrayRef starts, int64_t window);

}  // namespace fsdp::kernels
