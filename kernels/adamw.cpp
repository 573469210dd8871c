#include "kernels/adamw.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/flat_kernels.h"
#include "kernels/parallel_for.h"
#include "kernels/simd.h"

namespace fsdp::kernels {
namespace {

FSDP_SIMD_CLONES void update(float* __restrict__ w, const float* __restrict__ g, float* __restrict__ m,
                             float* __restrict__ v, int64_t n, AdamWFactors f) {
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * f.gradient;
    m[i] = f.beta1 * m[i] + f.rest1 * gradient;
    v[i] = f.beta2 * v[i] + f.rest2 * gradient * gradient;
    w[i] = w[i] * f.keep - f.step_size * m[i] / (std::sqrt(v[i]) * f.root_scale + f.eps);
  }
}

// An element's result must not depend on where a shard boundary lies, and scalar code may round otherwise than vector
// code. So the tail of a range goes through the vector loop too, in a padded copy.
void update_tail(float* w, const float* g, float* m, float* v, int64_t n, const AdamWFactors& factors) {
  constexpr auto kSize = static_cast<size_t>(simd::kLanes);
  std::array<float, kSize> padded_w{}, padded_g{}, padded_m{}, padded_v{};
  std::copy_n(w, n, padded_w.data());
  std::copy_n(g, n, padded_g.data());
  std::copy_n(m, n, padded_m.data());
  std::copy_n(v, n, padded_v.data());
  update(padded_w.data(), padded_g.data(), padded_m.data(), padded_v.data(), simd::kLanes, factors);
  std::copy_n(padded_w.data(), n, w);
  std::copy_n(padded_m.data(), n, m);
  std::copy_n(padded_v.data(), n, v);
}

FSDP_SIMD_CLONES void round_weights(c10::BFloat16* __restrict__ copy, const float* __restrict__ w, int64_t n) {
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) simd::store(copy + i, simd::load(w + i));
  for (; i < n; ++i) copy[i] = w[i];
}

}  // namespace

AdamWFactors make_factors(const AdamWStep& step) {
  const double correction1 = 1 - std::pow(step.beta1, static_cast<double>(step.step));
  const double correction2 = 1 - std::pow(step.beta2, static_cast<double>(step.step));
  return {static_cast<float>(1 - step.lr * step.weight_decay),
          static_cast<float>(step.beta1),
          static_cast<float>(1 - step.beta1),
          static_cast<float>(step.beta2),
          static_cast<float>(1 - step.beta2),
          static_cast<float>(step.lr / correction1),
          static_cast<float>(1 / std::sqrt(correction2)),
          static_cast<float>(step.eps),
          static_cast<float>(step.gradient_factor)};
}

void adamw_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& m, const at::Tensor& v,
                const at::Tensor& copy, const AdamWStep& step) {
  if (!weight.is_cpu()) {
    return need_flat_kernels("adamw_step", weight).adamw_step(weight, gradient, m, v, copy, step);
  }
  AdamWFactors factors = make_factors(step);
  if (step.gradient_scale.defined()) factors.gradient *= step.gradient_scale.item<float>();
  float* w = weight.mutable_data_ptr<float>();
  const float* g = gradient.const_data_ptr<float>();
  float* first = m.mutable_data_ptr<float>();
  float* second = v.mutable_data_ptr<float>();
  const bool same_dtype = copy.defined() && copy.scalar_type() == at::kFloat;
  float* copied = same_dtype ? copy.mutable_data_ptr<float>() : nullptr;
  c10::BFloat16* rounded = copy.defined() && !same_dtype ? copy.mutable_data_ptr<c10::BFloat16>() : nullptr;
  // In blocks, so that the copy reads weights that are still in the cache.
  constexpr int64_t kBlock = 4096, kGrain = 16;
  const int64_t numel = weight.numel();
  parallel_for(0, (numel + kBlock - 1) / kBlock, kGrain, [&](int64_t first_block, int64_t last_block) {
    for (int64_t begin = first_block * kBlock; begin < std::min(numel, last_block * kBlock); begin += kBlock) {
      const int64_t n = std::min(kBlock, numel - begin);
      const int64_t whole = n - n % simd::kLanes;
      update(w + begin, g + begin, first + begin, second + begin, whole, factors);
      const int64_t tail = begin + whole;
      if (whole < n) update_tail(w + tail, g + tail, first + tail, second + tail, n - whole, factors);
      if (rounded != nullptr) round_weights(rounded + begin, w + begin, n);
      if (copied != nullptr) std::copy_n(w + begin, n, copied + begin);
    }
  });
}

}  // namespace fsdp::kernels
