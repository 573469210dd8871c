#include "plan/time/work.h"

namespace fsdp::plan::time {

std::string_view name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp32:
      return "fp32";
    case Dtype::kBf16:
      return "bf16";
    case Dtype::kFp8:
      return "fp8";
  }
  return "";
}

int64_t element_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp32:
      return 4;
    case Dtype::kBf16:
      return 2;
    case Dtype::kFp8:
      return 1;
  }
  return 0;
}

double Product::flops() const {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(count);
}

double Work::product_flops() const {
  double flops = 0;
  for (const Product& product : products) flops += product.flops();
  return flops;
}

Work& Work::operator+=(const Work& other) {
  products.insert(products.end(), other.products.begin(), other.products.end());
  attention_forward_flops += other.attention_forward_flops;
  attention_backward_flops += other.attention_backward_flops;
  attention_forward_rows += other.attention_forward_rows;
  attention_backward_rows += other.attention_backward_rows;
  masked_forward_flops += other.masked_forward_flops;
  masked_backward_flops += other.masked_backward_flops;
  bytes += other.bytes;
  kernels += other.kernels;
  tensor_calls += other.tensor_calls;
  context_calls += other.context_calls;
  ring_rounds += other.ring_rounds;
  ring_gradient_rounds += other.ring_gradient_rounds;
  small_calls += other.small_calls;
  expert_calls += other.expert_calls;
  return *this;
}

}  // namespace fsdp::plan::time
