#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "fsdp/layout/planner.h"

namespace fsdp {

// What a module's parameters have as their .grad while their gradients lie in the leaves of fsdp::parameters(): zeros
// that take no memory until somebody writes to them. So it is seen when a program empties them (Module::zero_grad), and
// when it reads them. CPU only: on a device there are none. Local; driven by a Context, one thread at a time.
class GradientMarks {
 public:
  // What the program did to the mark of a parameter since it was set.
  enum class Fate { kNotSet, kKept, kEmptied, kZeroed, kReplaced };

  GradientMarks() = default;
  // For parameters of this layout, dtype and device.
  GradientMarks(const layout::FlatLayout& layout, const std::vector<std::vector<int64_t>>& sizes,
                const at::TensorOptions& options);

  // Null where there are none.
  const c10::StorageImpl* storage() const;
  void set(size_t i, const at::Tensor& parameter);
  Fate fate(size_t i, const at::Tensor& parameter) const;
  // Ends a fate: the parameter's .grad is as if no mark had been set, and the mark is zeros again.
  void take(size_t i, const at::Tensor& parameter);
  // A gradient that autograd accumulated, onto the mark if nothing of a backward had come before: then a copy, and it
  // is as if no mark had been set.
  at::Tensor release(size_t i, const at::Tensor& gradient);
  // zero_() was called on it.
  void note_zeroed(size_t i) { zeroed_[i] = true; }

 private:
  // Also of a detach()ed one, which Module::zero_grad puts in its place.
  bool is_mark(size_t i, const at::Tensor& gradient) const;
  // Gives memory back that somebody's write took.
  void clear();

  at::Tensor zeros_;
  std::vector<at::Tensor> marks_;
  std::vector<bool> set_, zeroed_;
};

}  // namespace fsdp
