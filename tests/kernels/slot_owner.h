// An owner of gradients for tests: one slot, for the tensor it was given.
#pragma once

#include <torch/torch.h>

#include <optional>

#include "kernels/gradient_slot.h"

namespace fsdp::kernels {

class SlotOwner {
 public:
  SlotOwner(const at::Tensor& owned, const at::Tensor& goes_to, bool is_added, double factor) {
    weight = owned;
    target = goes_to;
    adds = is_added;
    scale = factor;
    set_gradient_slots([](const at::Tensor& asked) -> std::optional<GradientSlot> {
      if (!asked.is_same(weight)) return std::nullopt;
      return GradientSlot{target, adds, scale, make_stand_in(asked)};
    });
  }
  ~SlotOwner() {
    set_gradient_slots(nullptr);
    weight = target = at::Tensor();
  }
  SlotOwner(const SlotOwner&) = delete;
  SlotOwner& operator=(const SlotOwner&) = delete;

 private:
  static inline at::Tensor weight, target;
  static inline bool adds;
  static inline double scale;
};

}  // namespace fsdp::kernels
