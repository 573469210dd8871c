#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "tests/device/stream_clocks.h"

namespace fsdp::testing {

// A device that is not there: LibTorch's PrivateUse1 with streams, events and an allocator that reuses memory as CUDA's
// does. Operators run at once, on the CPU; what the streams would have done is kept by the clocks, which find work that
// the streams do not order. Several devices of this kind, so that ranks that are threads can have one each (autograd
// has a thread for each device). Freed memory is filled with NaN, and handed out again first.
c10::Device fake_device(int index = 0);

// Of all fake devices.
StreamClocks& stream_clocks();
StreamKey key_of(const c10::Stream& stream);

// The memory of a tensor on a fake device, for a kernel of the CPU; other tensors, and undefined ones, as they are.
at::Tensor on_cpu(const at::Tensor& tensor);

// Shows ranges to the clocks (base/trace.h) from construction to destruction.
class ShownRanges {
 public:
  ShownRanges();
  ~ShownRanges();
  ShownRanges(const ShownRanges&) = delete;
  ShownRanges& operator=(const ShownRanges&) = delete;
};

}  // namespace fsdp::testing
