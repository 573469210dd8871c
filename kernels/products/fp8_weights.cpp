#include "kernels/products/fp8_weights.h"

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace fsdp::kernels {
namespace {

// A weak pointer keeps a tensor's address from being another's.
struct MarkedWeight {
  c10::weak_intrusive_ptr<c10::TensorImpl> weight;
  Fp8Recipe recipe;
};

struct MarkedWeights {
  std::atomic<bool> exist{false};
  std::shared_mutex mutex;
  std::unordered_map<const c10::TensorImpl*, MarkedWeight> by_address;
};

MarkedWeights& marked_weights() {
  static auto* weights = new MarkedWeights;  // tensors may outlive every static
  return *weights;
}

}  // namespace

void set_fp8(const at::Tensor& weight, std::optional<Fp8Recipe> recipe) {
  MarkedWeights& weights = marked_weights();
  const std::unique_lock lock(weights.mutex);
  std::erase_if(weights.by_address, [](const auto& entry) { return entry.second.weight.expired(); });
  weights.by_address.erase(weight.unsafeGetTensorImpl());
  if (recipe) {
    weights.by_address.emplace(
        weight.unsafeGetTensorImpl(),
        MarkedWeight{c10::weak_intrusive_ptr<c10::TensorImpl>(weight.getIntrusivePtr()), *recipe});
  }
  weights.exist = !weights.by_address.empty();
}

bool any_fp8_weight() { return marked_weights().exist; }

std::optional<Fp8Recipe> fp8_recipe_of(const at::Tensor& weight) {
  MarkedWeights& weights = marked_weights();
  if (!weights.exist) return std::nullopt;
  const std::shared_lock lock(weights.mutex);
  const auto found = weights.by_address.find(weight.unsafeGetTensorImpl());
  if (found == weights.by_address.end()) return std::nullopt;
  return found->second.recipe;
}

}  // namespace fsdp::kernels
