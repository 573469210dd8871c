#include "kernels/gradient_slot.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <atomic>

namespace fsdp::kernels {
namespace {

constexpr int64_t kZeroBytes = int64_t{1} << 36;

std::atomic<FindGradientSlot>& finder() {
  static std::atomic<FindGradientSlot> instance{nullptr};
  return instance;
}

// Pages that were never written are all the same one.
at::Tensor map_zeros() {
  void* zeros = mmap(nullptr, kZeroBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  return zeros == MAP_FAILED ? at::Tensor() : at::from_blob(zeros, {kZeroBytes}, at::kByte);
}

const at::Tensor& zeros() {
  static const auto* tensor = new at::Tensor(map_zeros());  // gradients may outlive every static
  return *tensor;
}

}  // namespace

void set_gradient_slots(FindGradientSlot find) { finder() = find; }

std::optional<GradientSlot> find_gradient_slot(const at::Tensor& weight) {
  const FindGradientSlot find = finder();
  return find != nullptr ? find(weight) : std::nullopt;
}

at::Tensor make_stand_in(const at::Tensor& weight) {
  const auto bytes = static_cast<int64_t>(weight.nbytes());
  if (!zeros().defined() || bytes > kZeroBytes) return {};
  return zeros().narrow(0, 0, bytes).view(weight.scalar_type()).view(weight.sizes());
}

bool is_stand_in(const at::Tensor& gradient) { return zeros().defined() && gradient.is_alias_of(zeros()); }

}  // namespace fsdp::kernels
