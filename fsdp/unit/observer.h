#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp {

class ParameterGroup;
class UnitState;

// One parameter an operator is about to read.
struct Touch {
  UnitState* unit;
  ParameterGroup* group;
  size_t index;
  bool needs_gradient;
};

// While at least one lives, every operator of the process is looked at before it runs, in forward and in backward: one
// that reads a sharded parameter is reported to the parameter's Context. About 140 ns per operator.
// After: at::RecordFunction, which profilers use the same way.
class Observation {
 public:
  Observation();
  ~Observation();
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;
};

// What the observer does before an operator that reads `tensors`, for code that is no operator. COLLECTIVE. Throws what
// went wrong.
void observe_read(at::TensorList tensors);

}  // namespace fsdp
