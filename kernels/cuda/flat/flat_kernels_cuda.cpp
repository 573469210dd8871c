// The kernels over flat memory of CUDA devices, put into kernels/flat/flat_kernels.h when this library is loaded.
#include "kernels/flat/flat_kernels.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/cuda/flat/flat_checks.h"
#include "kernels/cuda/flat/flat_launch.h"
#include "kernels/cuda/flat/steps.h"

namespace fsdp::kernels::cuda {
namespace {

void pack_gradient(const at::Tensor& destination, const at::Tensor& gradient, double scale, bool add) {
  constexpr auto kOp = "pack_gradient";
  const c10::cuda::CUDAGuard guard(destination.device());
  check_beside(kOp, destination, gradient);
  const PackArrays arrays{destination.mutable_data_ptr(), dtype_of(kOp, destination), gradient.const_data_ptr(),
                          dtype_of(kOp, gradient), destination.numel()};
  C10_CUDA_CHECK(launch_pack(arrays, static_cast<float>(scale), add ? Placing::kAdd : Placing::kWrite,
                             c10::cuda::getCurrentCUDAStream()));
}

void sum_chunks(const at::Tensor& output, const std::vector<at::Tensor>& chunks, bool add) {
  constexpr auto kOp = "sum_chunks";
  TORCH_CHECK(!chunks.empty() && chunks.size() <= kMostChunks, "[sum_chunks] got ", chunks.size(),
              " chunks, expected 1 to ", kMostChunks, ". Let NCCL reduce between so many ranks.");
  const c10::cuda::CUDAGuard guard(output.device());
  ChunkArrays arrays{output.mutable_data_ptr(),       dtype_of(kOp, output),         {},
                     static_cast<int>(chunks.size()), dtype_of(kOp, chunks.front()), output.numel()};
  for (size_t i = 0; i < chunks.size(); ++i) {
    check_beside(kOp, output, chunks[i]);
    TORCH_CHECK(chunks[i].scalar_type() == chunks.front().scalar_type(), "[sum_chunks] got chunks of ",
                chunks.front().scalar_type(), " and ", chunks[i].scalar_type(), ", expected one dtype");
    arrays.chunks[i] = chunks[i].const_data_ptr();
  }
  C10_CUDA_CHECK(launch_sum_chunks(arrays, add ? Placing::kAdd : Placing::kWrite, c10::cuda::getCurrentCUDAStream()));
}

at::Tensor sum_squares(const at::Tensor& values) {
  const c10::cuda::CUDAGuard guard(values.device());
  const auto options = values.options().dtype(at::kDouble);
  const at::Tensor partials = at::empty({num_partial_sums(values.numel())}, options);
  at::Tensor sum = at::empty({}, options);
  const SquaresArrays arrays{values.const_data_ptr(), dtype_of("sum_squares", values), values.numel(),
                             partials.mutable_data_ptr<double>(), sum.mutable_data_ptr<double>()};
  C10_CUDA_CHECK(launch_sum_squares(arrays, c10::cuda::getCurrentCUDAStream()));
  return sum;
}

constexpr FlatKernels kKernels{adamw_step,         sgd_step,      lion_step,  schedule_free_step,
                               low_bit_adamw_step, pack_gradient, sum_chunks, sum_squares};

// Also takes the kernels away before the library is unloaded.
struct Registration {
  Registration() { set_flat_kernels(c10::DeviceType::CUDA, &kKernels); }
  ~Registration() { set_flat_kernels(c10::DeviceType::CUDA, nullptr); }
};
const Registration registration;

}  // namespace
}  // namespace fsdp::kernels::cuda
