// The seam through which an operator writes a weight's gradient where its owner wants it, rather than into a tensor
// that is copied there.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fsdp::kernels {

// Where the gradient of one weight goes in the running backward.
struct GradientSlot {
  at::Tensor target;  // fp32, contiguous, sizes of the weight
  bool adds = false;  // target = target + gradient * scale; else its contents are worthless
  double scale = 1;
  at::Tensor stand_in;  // what the operator returns to autograd as the gradient
};

// A slot for the gradient of `weight`, a leaf, that an operator is about to compute in a backward; nothing: the
// gradient is to be returned. Who gets a slot must fill it.
using FindGradientSlot = std::optional<GradientSlot> (*)(const at::Tensor& weight);

// One owner of gradients in a process; null: none. Thread-safe.
void set_gradient_slots(FindGradientSlot find);
std::optional<GradientSlot> find_gradient_slot(const at::Tensor& weight);

// Zeros of the sizes, dtype and device of `weight` that take no memory, so that what autograd adds to them is what the
// slot lacks; undefined where the system has no addresses for them, or nobody provides zeros of that device. Dense, as
// autograd copies what is not. Read only: they are never written, because others share their storage.
at::Tensor make_stand_in(const at::Tensor& weight);
bool is_stand_in(const at::Tensor& gradient);

// The most bytes a stand-in may have, on any device.
inline constexpr int64_t kMostStandInBytes = int64_t{1} << 36;

// Zeros of a device other than the CPU: one uint8 tensor [kMostStandInBytes] per device, always the same, of which at
// least the first `bytes` may be read; undefined where there is none. A library loaded on demand provides it (null:
// takes it away). Thread-safe.
using FindZeros = at::Tensor (*)(c10::Device device, int64_t bytes);
void set_device_zeros(c10::DeviceType type, FindZeros find);

}  // namespace fsdp::kernels
