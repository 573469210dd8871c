// An owner of gradients for tests: a slot for each of the tensors it was given.
#pragma once

#include <torch/torch.h>

#include <optional>
#include <vector>

#include "kernels/base/gradient_slot.h"

namespace fsdp::kernels {

class SlotOwner {
 public:
  struct Owned {
    at::Tensor weight, target;
  };

  SlotOwner(std::vector<Owned> all, bool is_added, double factor) {
    owned = std::move(all);
    adds = is_added;
    scale = factor;
    set_gradient_slots([](const at::Tensor& asked) -> std::optional<GradientSlot> {
      for (const Owned& one : owned) {
        if (asked.is_same(one.weight)) return GradientSlot{one.target, adds, scale, make_stand_in(asked)};
      }
      return std::nullopt;
    });
  }
  SlotOwner(const at::Tensor& weight, const at::Tensor& target, bool is_added, double factor)
      : SlotOwner({{weight, target}}, is_added, factor) {}
  ~SlotOwner() {
    set_gradient_slots(nullptr);
    owned.clear();
  }
  SlotOwner(const SlotOwner&) = delete;
  SlotOwner& operator=(const SlotOwner&) = delete;

 private:
  static inline std::vector<Owned> owned;
  static inline bool adds;
  static inline double scale;
};

}  // namespace fsdp::kernels
