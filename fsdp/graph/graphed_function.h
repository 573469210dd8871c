#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/base/tensor_function.h"

namespace fsdp {

// What became of calls of a GraphedFunction.
struct GraphCounters {
  int64_t eager = 0;     // ran as they are
  int64_t recorded = 0;  // recordings made: one of a forward and its backward
  int64_t replayed = 0;  // forwards that were replayed; their backwards were too
};

// Part of a model whose forward and backward are one launch each (CUDA graphs), for models so small that launching
// their operators takes longer than the operators. Bits are those of the plain call.
//
// The first calls of a kind run as they are, which readies libraries; the next is recorded. A kind is the sizes, dtypes
// and devices of the inputs and the addresses of the parameters: sharded ones keep theirs with AllocatorKind::kTraced,
// or in a world of one. Calls run as they are without gradients, on devices that record nothing (the CPU), while the
// backward of a replayed call is still to come, and once kMostRecordings kinds were met.
//
// Sharded parameters are gathered before both replays, and their gradients arrive as they always do, but not written in
// place. Each recording holds its activations, outputs and gradients for good.
// A backward that was replayed has no second derivatives: who differentiates its gradients again is refused.
//
// Not thread-safe. One for each part of the model that is called once in a forward.
class GraphedFunction {
 public:
  // `parameters`: everything that calls read besides their inputs and that needs gradients or is sharded.
  explicit GraphedFunction(std::vector<at::Tensor> parameters);
  ~GraphedFunction();
  GraphedFunction(GraphedFunction&&) noexcept;
  GraphedFunction& operator=(GraphedFunction&&) noexcept;

  // function(inputs), which computes nothing but results from `inputs` and the parameters, every time by the same
  // operators, and never waits for the device. What it captures by value or reference must be the same in every call.
  // Results are memory of the recording: they hold until the next call, and are not to be written. Local but for the
  // gathers of what is sharded. Throws what `function` throws, and Error(kUsage) if it cannot be recorded.
  std::vector<at::Tensor> operator()(const TensorListFunction& function, const std::vector<at::Tensor>& inputs);

  const GraphCounters& counters() const;

  static constexpr int kWarmUps = 2;
  static constexpr int kMostRecordings = 4;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp
