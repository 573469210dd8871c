#include "kernels/flat/pack.h"

#include <ATen/core/Tensor.h>

#include "kernels/base/raw_pointer.h"
#include "kernels/flat/flat_kernels.h"
#include "kernels/raw/flat/pack.h"

namespace fsdp::kernels {
namespace {

template <class T>
void pack(const at::Tensor& destination, const T* gradient, float scale, int64_t count, bool add) {
  auto* to = destination.mutable_data_ptr<float>();
  add ? raw::add_scaled(to, gradient, scale, count) : raw::scale_to(to, gradient, scale, count);
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
    pack(destination, gradient.const_data_ptr<float>(), factor, gradient.numel(), add);
  } else if (plain && gradient.scalar_type() == at::kBFloat16) {
    pack(destination, raw_data(gradient.const_data_ptr<c10::BFloat16>()), factor, gradient.numel(), add);
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
