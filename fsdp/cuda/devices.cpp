#include "fsdp/cuda/devices.h"

#include <cuda_runtime_api.h>

#include "fsdp/base/error.h"

namespace fsdp::cuda {
namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCode::kInternal, std::string("[cuda] ") + what + ": " + cudaGetErrorString(status) +
                                        ". Check the driver with nvidia-smi.");
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cannot ask a GPU for its properties");
  return value;
}

}  // namespace

std::vector<DeviceProperties> devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) return {};
  check(status, "cannot count the GPUs");
  std::vector<DeviceProperties> all;
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp raw{};
    check(cudaGetDeviceProperties(&raw, device), "cannot ask a GPU for its properties");
    DeviceProperties properties;
    properties.name = raw.name;
    properties.compute_capability = 10 * raw.major + raw.minor;
    properties.multiprocessors = raw.multiProcessorCount;
    properties.memory_bytes = static_cast<int64_t>(raw.totalGlobalMem);
    properties.l2_bytes = raw.l2CacheSize;
    // The clock is in kHz and memory moves data on both edges.
    properties.memory_bandwidth =
        2.0 * attribute(cudaDevAttrMemoryClockRate, device) * 1e3 * (raw.memoryBusWidth / 8.0);
    all.push_back(std::move(properties));
  }
  return all;
}

}  // namespace fsdp::cuda
