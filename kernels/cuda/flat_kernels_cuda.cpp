// The kernels over flat memory of CUDA devices, put into kernels/flat/flat_kernels.h when this library is loaded.
#include "kernels/flat/flat_kernels.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/cuda/flat_launch.h"

namespace fsdp::kernels::cuda {
namespace {

Dtype dtype_of(const char* op, const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return Dtype::kFloat;
  if (tensor.scalar_type() == at::kBFloat16) return Dtype::kBFloat16;
  TORCH_CHECK(tensor.scalar_type() == at::kHalf, "[", op, "] got ", tensor.scalar_type(),
              ", expected float32, bfloat16 or float16");
  return Dtype::kHalf;
}

// That a kernel may read and write `tensor` beside `first`.
void check_beside(const char* op, const at::Tensor& first, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device() == first.device() && tensor.is_contiguous() && tensor.numel() == first.numel(), "[", op,
              "] got ", tensor.numel(), " elements with strides ", tensor.strides(), " on ", tensor.device(),
              ", expected ", first.numel(), " side by side on ", first.device());
}

float* floats(const char* op, const at::Tensor& first, const at::Tensor& tensor) {
  check_beside(op, first, tensor);
  return tensor.mutable_data_ptr<float>();
}

// The copy of the weight that a step writes along, if any.
struct Copy {
  void* data = nullptr;
  Dtype dtype = Dtype::kFloat;
};

Copy find_copy(const char* op, const at::Tensor& weight, const at::Tensor& copy) {
  if (!copy.defined()) return {};
  check_beside(op, weight, copy);
  return {copy.mutable_data_ptr(), dtype_of(op, copy)};
}

const float* find_scale(const char* op, const at::Tensor& weight, const at::Tensor& scale) {
  if (!scale.defined()) return nullptr;
  TORCH_CHECK(scale.device() == weight.device() && scale.numel() == 1, "[", op, "] gradient_scale: got ", scale.numel(),
              " numbers on ", scale.device(), ", expected one on ", weight.device());
  return scale.const_data_ptr<float>();
}

void adamw_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& m, const at::Tensor& v,
                const at::Tensor& copy, const AdamWStep& step) {
  constexpr auto kOp = "adamw_step";
  const c10::cuda::CUDAGuard guard(weight.device());
  const Copy along = find_copy(kOp, weight, copy);
  const AdamWArrays arrays{floats(kOp, weight, weight),
                           floats(kOp, weight, gradient),
                           floats(kOp, weight, m),
                           floats(kOp, weight, v),
                           along.data,
                           along.dtype,
                           find_scale(kOp, weight, step.gradient_scale),
                           weight.numel()};
  C10_CUDA_CHECK(launch_adamw(arrays, make_factors(step), c10::cuda::getCurrentCUDAStream()));
}

void sgd_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& buffer, const at::Tensor& copy,
              const SGDStep& step) {
  constexpr auto kOp = "sgd_step";
  const c10::cuda::CUDAGuard guard(weight.device());
  const Copy along = find_copy(kOp, weight, copy);
  const bool has_momentum = step.state != MomentumState::kNone;
  const SGDArrays arrays{floats(kOp, weight, weight),
                         floats(kOp, weight, gradient),
                         has_momentum ? floats(kOp, weight, buffer) : nullptr,
                         along.data,
                         along.dtype,
                         find_scale(kOp, weight, step.gradient_scale),
                         weight.numel()};
  const Momentum momentum = !has_momentum ? Momentum::kNone : step.nesterov ? Momentum::kNesterov : Momentum::kPlain;
  C10_CUDA_CHECK(launch_sgd(arrays, make_factors(step), momentum, c10::cuda::getCurrentCUDAStream()));
}

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

constexpr FlatKernels kKernels{adamw_step, sgd_step, pack_gradient, sum_chunks, sum_squares};

// Also takes the kernels away before the library is unloaded.
struct Registration {
  Registration() { set_flat_kernels(c10::DeviceType::CUDA, &kKernels); }
  ~Registration() { set_flat_kernels(c10::DeviceType::CUDA, nullptr); }
};
const Registration registration;

}  // namespace
}  // namespace fsdp::kernels::cuda
