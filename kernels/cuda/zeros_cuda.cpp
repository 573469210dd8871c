// Zeros of a CUDA device: a range of addresses, every page of which is the same page of memory.
#include <ATen/ATen.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>

#include "kernels/base/gradient_slot.h"
#include "kernels/cuda/tensors.h"

namespace fsdp::kernels::cuda {
namespace {

// Functions of the driver, found at run time: the library loads where there is none.
struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemSetAccess) allow = nullptr;
  bool is_complete = false;
};

constexpr unsigned kDriverVersion = 12000;

template <class Function>
bool look_up(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, kDriverVersion, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  function = reinterpret_cast<Function>(found);
  return true;
}

const Driver& driver() {
  static const Driver instance = [] {
    Driver d;
    d.is_complete = look_up("cuMemGetAllocationGranularity", d.granularity) &&
                    look_up("cuMemAddressReserve", d.reserve) && look_up("cuMemCreate", d.create) &&
                    look_up("cuMemMap", d.map) && look_up("cuMemSetAccess", d.allow);
    return d;
  }();
  return instance;
}

// Of one device. Grows; what was handed out stays, as gradients may outlive everything. Not thread-safe.
class Zeros {
 public:
  explicit Zeros(c10::Device device) : device_(device) {}

  // One tensor [kMostStandInBytes], the first `bytes` of which are there; undefined if they cannot be had.
  at::Tensor find(int64_t bytes) {
    if (failed_) return {};
    failed_ = !(tensor_.defined() || create()) || !grow_to(bytes);
    return failed_ ? at::Tensor() : tensor_;
  }

 private:
  // The page, the addresses, and the first mapping, through which the page is written once. Waits for the device: this
  // happens once per device.
  bool create() {
    const Driver& d = driver();
    if (!d.is_complete) return false;
    const c10::cuda::CUDAGuard guard(device_);
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties_.location.id = device_.index();
    if (d.granularity(&page_bytes_, &properties_, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS) return false;
    if (d.reserve(&base_, kMostStandInBytes, page_bytes_, 0, 0) != CUDA_SUCCESS) return false;
    if (d.create(&page_, page_bytes_, &properties_, 0) != CUDA_SUCCESS || !grow_to(1)) return false;
    auto* memory = reinterpret_cast<void*>(base_);  // NOLINT(performance-no-int-to-ptr): addresses are the driver's
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    if (cudaMemsetAsync(memory, 0, page_bytes_, stream) != cudaSuccess) return false;
    if (cudaStreamSynchronize(stream) != cudaSuccess) return false;
    tensor_ = at::for_blob(memory, {kMostStandInBytes})
                  .options(at::TensorOptions().dtype(at::kByte).device(device_))
                  .target_device(device_)
                  .make_tensor();
    return true;
  }

  bool grow_to(int64_t bytes) {
    const Driver& d = driver();
    const size_t begin = mapped_;
    const size_t end = (static_cast<size_t>(bytes) + page_bytes_ - 1) / page_bytes_ * page_bytes_;
    for (; mapped_ < end; mapped_ += page_bytes_)
      if (d.map(base_ + mapped_, page_bytes_, 0, page_, 0) != CUDA_SUCCESS) return false;
    if (begin == mapped_) return true;
    CUmemAccessDesc access{};
    access.location = properties_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return d.allow(base_ + begin, mapped_ - begin, &access, 1) == CUDA_SUCCESS;
  }

  c10::Device device_;
  bool failed_ = false;
  at::Tensor tensor_;
  CUmemAllocationProp properties_{};
  CUmemGenericAllocationHandle page_ = 0;
  CUdeviceptr base_ = 0;
  size_t page_bytes_ = 0, mapped_ = 0;
};

constexpr size_t kMostDevices = 64;

at::Tensor find_cuda_zeros(c10::Device device, int64_t bytes) {
  static std::mutex mutex;
  static auto* const zeros = new std::array<std::unique_ptr<Zeros>, kMostDevices>();
  const auto index = static_cast<size_t>(device.index());
  if (index >= kMostDevices) return {};
  const std::lock_guard lock(mutex);
  std::unique_ptr<Zeros>& of_device = zeros->at(index);
  if (!of_device && bytes == 0) return {};  // none was ever asked for
  if (!of_device) of_device = std::make_unique<Zeros>(device);
  return of_device->find(bytes);
}

[[maybe_unused]] const bool kIsProvided = [] {
  set_device_zeros(c10::DeviceType::CUDA, &find_cuda_zeros);
  return true;
}();

}  // namespace
}  // namespace fsdp::kernels::cuda
