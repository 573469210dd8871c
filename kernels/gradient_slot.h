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

// Zeros of the sizes and dtype of `weight` that take no memory, so that what autograd adds to them is what the slot
// lacks; undefined where the system has no addresses for them. Read only: they are never written, because others share
// their storage.
at::Tensor make_stand_in(const at::Tensor& weight);
bool is_stand_in(const at::Tensor& gradient);

}  // namespace fsdp::kernels
