#pragma once

namespace fsdp::testing {

// Gives the fake device the kernels over flat memory: those of the CPU, as work of the current stream. For the lifetime
// of the object.
class FakeFlatKernels {
 public:
  FakeFlatKernels();
  ~FakeFlatKernels();
  FakeFlatKernels(const FakeFlatKernels&) = delete;
  FakeFlatKernels& operator=(const FakeFlatKernels&) = delete;
};

}  // namespace fsdp::testing
