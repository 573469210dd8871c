#include "kernels/products/fp8_history.h"

#include <algorithm>

#include "kernels/base/tensor_table.h"

namespace fsdp::kernels {
namespace {

TensorTable<std::shared_ptr<Fp8History>>& histories() {
  static auto* table = new TensorTable<std::shared_ptr<Fp8History>>;  // tensors may outlive every static
  return *table;
}

size_t index_of(Fp8Seen factor) { return static_cast<size_t>(factor); }

}  // namespace

uint8_t Fp8History::code(Fp8Seen factor) const {
  uint8_t largest = 0;
  for (const Codes& codes : steps_) largest = std::max(largest, codes[index_of(factor)]);
  return largest;
}

void Fp8History::see(Fp8Seen factor, uint8_t code) {
  std::atomic<uint8_t>& largest = seen_[index_of(factor)];
  uint8_t before = largest.load();
  while (before < code && !largest.compare_exchange_weak(before, code)) {
  }
}

void Fp8History::forget_seen() {
  for (auto& each : seen_) each.store(0);
}

void Fp8History::push(const Codes& codes) {
  std::move_backward(steps_.begin(), steps_.end() - 1, steps_.end());
  steps_.front() = codes;
  forget_seen();
}

std::shared_ptr<Fp8History> fp8_history_of(const at::Tensor& weight) {
  if (const auto known = histories().find(weight)) return *known;
  return histories().add(weight, std::make_shared<Fp8History>());
}

}  // namespace fsdp::kernels
