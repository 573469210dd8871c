// From tensors to the arguments of launches: what the wrappers of the model's kernels share.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <initializer_list>

#include "kernels/cuda/model_launch.h"

namespace fsdp::kernels::cuda {

inline Element element_of(const char* op, const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return Element::kFloat;
  if (tensor.scalar_type() == at::kBFloat16) return Element::kBFloat16;
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.scalar_type() == at::kHalf, "[", op, "] got ", tensor.scalar_type(),
                              ", expected float32, bfloat16 or float16");
  return Element::kHalf;
}

// That all lie on the device of the first.
inline void check_devices(const char* op, std::initializer_list<at::Tensor> tensors) {
  const c10::Device device = tensors.begin()->device();
  TORCH_CHECK(device.is_cuda(), "[", op, "] got a tensor on ", device, ", expected a CUDA device");
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.device() == device, "[", op, "] got tensors on ", device, " and ", tensor.device(),
                ": move them to one device");
  }
}

// The device of a tensor is the current one while this lives; stream() is the caller's on it.
class OnDeviceOf {
 public:
  explicit OnDeviceOf(const at::Tensor& tensor) : guard_(tensor.device()) {}
  cudaStream_t stream() const { return c10::cuda::getCurrentCUDAStream(); }

 private:
  c10::cuda::CUDAGuard guard_;
};

}  // namespace fsdp::kernels::cuda
