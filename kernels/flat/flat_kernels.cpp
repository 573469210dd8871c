#include "kernels/flat/flat_kernels.h"

#include <algorithm>
#include <array>
#include <atomic>

namespace fsdp::kernels {
namespace {

using Table = std::array<std::atomic<const FlatKernels*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES>;

std::atomic<const FlatKernels*>& entry(c10::DeviceType device) {
  static Table table{};
  return table.at(static_cast<size_t>(device));
}

bool is_plain(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  return (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf) && tensor.is_contiguous();
}

}  // namespace

void set_flat_kernels(c10::DeviceType device, const FlatKernels* kernels) { entry(device) = kernels; }

const FlatKernels* find_flat_kernels(c10::DeviceType device) { return entry(device); }

const FlatKernels* find_flat_kernels(at::TensorList tensors) {
  const at::Device device = tensors.front().device();
  const bool fits = std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.device() == device && is_plain(tensor);
  });
  return fits ? find_flat_kernels(device.type()) : nullptr;
}

const FlatKernels& need_flat_kernels(const char* op, const at::Tensor& tensor) {
  const FlatKernels* kernels = find_flat_kernels(tensor.device().type());
  TORCH_CHECK(kernels != nullptr, "[", op, "] got tensors on ", tensor.device(),
              ", whose kernels are not loaded. Load the library that has them (fsdp_cuda for CUDA), or keep the ",
              "tensors on the CPU.");
  return *kernels;
}

bool is_cpu_float(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
}

}  // namespace fsdp::kernels
