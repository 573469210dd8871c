#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::cuda {

// One GPU, as its driver describes it.
struct DeviceProperties {
  std::string name;            // "NVIDIA H200"
  int compute_capability = 0;  // 10 * major + minor: 90 for Hopper
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
  double memory_bandwidth = 0;  // bytes per second, both directions together, from clock and bus width
};

// The GPUs of this machine in the driver's order; none where there is no GPU or no driver. Local; part of the library
// fsdp::cuda, which builds with FSDP_CUDA have. Throws Error(kInternal) where a driver is there and fails.
std::vector<DeviceProperties> devices();

}  // namespace fsdp::cuda
