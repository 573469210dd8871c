#include "kernels/flat/weight_copy.h"

#include "kernels/base/raw_pointer.h"
#include "kernels/raw/products/panels.h"

namespace fsdp::kernels {

WeightCopy::WeightCopy(const at::Tensor& copy) : copy_(copy) {
  if (!copy.defined()) return;
  if (copy.scalar_type() == at::kFloat) same_ = copy.mutable_data_ptr<float>();
  if (copy.scalar_type() == at::kBFloat16) rounded_ = raw_data(copy.mutable_data_ptr<c10::BFloat16>());
}

void WeightCopy::write(const float* weight, int64_t begin, int64_t count) const {
  if (rounded_ != nullptr) raw::narrow(weight, rounded_ + begin, count);
  if (same_ != nullptr) std::copy_n(weight, count, same_ + begin);
}

void WeightCopy::finish(const at::Tensor& weight) const {
  if (copy_.defined() && same_ == nullptr && rounded_ == nullptr) copy_.copy_(weight);
}

}  // namespace fsdp::kernels
