#include "kernels/base/gradient_slot.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <array>
#include <atomic>

namespace fsdp::kernels {
namespace {

std::atomic<FindGradientSlot>& finder() {
  static std::atomic<FindGradientSlot> instance{nullptr};
  return instance;
}

// Pages that were never written are all the same one.
at::Tensor map_zeros() {
  void* zeros = mmap(nullptr, kMostStandInBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  return zeros == MAP_FAILED ? at::Tensor() : at::from_blob(zeros, {kMostStandInBytes}, at::kByte);
}

const at::Tensor& host_zeros() {
  static const auto* tensor = new at::Tensor(map_zeros());  // gradients may outlive every static
  return *tensor;
}

std::atomic<FindZeros>& zeros_of(c10::DeviceType type) {
  static std::array<std::atomic<FindZeros>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> finders{};
  return finders.at(static_cast<size_t>(type));
}

at::Tensor find_zeros(c10::Device device, int64_t bytes) {
  if (device.is_cpu()) return host_zeros();
  const FindZeros find = zeros_of(device.type());
  return find != nullptr ? find(device, bytes) : at::Tensor();
}

}  // namespace

void set_gradient_slots(FindGradientSlot find) { finder() = find; }

std::optional<GradientSlot> find_gradient_slot(const at::Tensor& weight) {
  const FindGradientSlot find = finder();
  return find != nullptr ? find(weight) : std::nullopt;
}

void set_device_zeros(c10::DeviceType type, FindZeros find) { zeros_of(type) = find; }

at::Tensor make_stand_in(const at::Tensor& weight) {
  const auto bytes = static_cast<int64_t>(weight.nbytes());
  if (bytes > kMostStandInBytes) return {};
  const at::Tensor zeros = find_zeros(weight.device(), bytes);
  if (!zeros.defined()) return {};
  return zeros.narrow(0, 0, bytes).view(weight.scalar_type()).view(weight.sizes());
}

bool is_stand_in(const at::Tensor& gradient) {
  const at::Tensor zeros = find_zeros(gradient.device(), 0);
  return zeros.defined() && gradient.is_alias_of(zeros);
}

}  // namespace fsdp::kernels
