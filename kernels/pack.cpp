#include "kernels/pack.h"

#include <ATen/ATen.h>

#include "kernels/flat_kernels.h"
#include "kernels/simd.h"

namespace fsdp::kernels {
namespace {

FSDP_SIMD_CLONES void scale_floats(float* __restrict__ out, const float* __restrict__ in, float scale, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = in[i] * scale;
}

FSDP_SIMD_CLONES void add_scaled_floats(float* __restrict__ out, const float* __restrict__ in, float scale, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] += in[i] * scale;
}

FSDP_SIMD_CLONES void scale_bfloats(float* __restrict__ out, const c10::BFloat16* __restrict__ in, float scale,
                                    int64_t n) {
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) simd::store(out + i, simd::load(in + i) * scale);
  for (; i < n; ++i) out[i] = static_cast<float>(in[i]) * scale;
}

FSDP_SIMD_CLONES void add_scaled_bfloats(float* __restrict__ out, const c10::BFloat16* __restrict__ in, float scale,
                                         int64_t n) {
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    simd::store(out + i, simd::load(out + i) + simd::load(in + i) * scale);
  }
  for (; i < n; ++i) out[i] += static_cast<float>(in[i]) * scale;
}

}  // namespace

void pack_gradient(const at::Tensor& destination, const at::Tensor& gradient, double scale, bool add) {
  const bool plain = destination.device().is_cpu() && destination.scalar_type() == at::kFloat &&
                     gradient.device().is_cpu() && gradient.is_contiguous();
  const FlatKernels* kernels = destination.is_cpu() ? nullptr : find_flat_kernels({destination, gradient});
  const auto factor = static_cast<float>(scale);
  if (kernels != nullptr) {
    kernels->pack_gradient(destination, gradient, scale, add);
  } else if (plain && gradient.scalar_type() == at::kFloat) {
    (add ? add_scaled_floats : scale_floats)(destination.mutable_data_ptr<float>(), gradient.const_data_ptr<float>(),
                                             factor, gradient.numel());
  } else if (plain && gradient.scalar_type() == at::kBFloat16) {
    (add ? add_scaled_bfloats : scale_bfloats)(destination.mutable_data_ptr<float>(),
                                               gradient.const_data_ptr<c10::BFloat16>(), factor, gradient.numel());
  } else {
    at::Tensor out = destination.view(gradient.sizes());
    if (add) {
      out.add_(gradient, scale);
    } else {
      out.copy_(gradient);
      if (scale != 1) out.mul_(scale);
    }
  }
}

}  // namespace fsdp::kernels
