#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/cuda/flat/flat_checks.h"
#include "kernels/cuda/flat/step_launch.h"
#include "kernels/cuda/flat/steps.h"

namespace fsdp::kernels::cuda {
namespace {

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

// Codes beside `weight`, and a scale for each block of it.
CodedArrays find_coded(const char* op, const at::Tensor& weight, const CodedMoment& moment) {
  check_beside(op, weight, moment.codes);
  const int64_t blocks = (weight.numel() + kCodedBlock - 1) / kCodedBlock;
  TORCH_CHECK(
      moment.scales.device() == weight.device() && moment.scales.is_contiguous() && moment.scales.numel() == blocks,
      "[", op, "] got ", moment.scales.numel(), " scales with strides ", moment.scales.strides(), " on ",
      moment.scales.device(), ", expected ", blocks, " side by side on ", weight.device());
  return {moment.codes.mutable_data_ptr<uint8_t>(), moment.scales.mutable_data_ptr<float>(), moment.code->fractions()};
}

}  // namespace

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

void lion_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& momentum, const at::Tensor& copy,
               const LionStep& step) {
  constexpr auto kOp = "lion_step";
  const c10::cuda::CUDAGuard guard(weight.device());
  const Copy along = find_copy(kOp, weight, copy);
  const LionArrays arrays{floats(kOp, weight, weight),
                          floats(kOp, weight, gradient),
                          floats(kOp, weight, momentum),
                          along.data,
                          along.dtype,
                          find_scale(kOp, weight, step.gradient_scale),
                          weight.numel()};
  C10_CUDA_CHECK(launch_lion(arrays, make_factors(step), c10::cuda::getCurrentCUDAStream()));
}

void schedule_free_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& iterate,
                        const at::Tensor& squares, const at::Tensor& copy, const ScheduleFreeStep& step) {
  constexpr auto kOp = "schedule_free_step";
  const c10::cuda::CUDAGuard guard(weight.device());
  const Copy along = find_copy(kOp, weight, copy);
  const ScheduleFreeArrays arrays{floats(kOp, weight, weight),
                                  floats(kOp, weight, gradient),
                                  floats(kOp, weight, iterate),
                                  floats(kOp, weight, squares),
                                  along.data,
                                  along.dtype,
                                  find_scale(kOp, weight, step.gradient_scale),
                                  weight.numel()};
  C10_CUDA_CHECK(launch_schedule_free(arrays, make_factors(step), step.step == 1 ? Iterate::kStarts : Iterate::kGoesOn,
                                      c10::cuda::getCurrentCUDAStream()));
}

void low_bit_adamw_step(const KeptWeights& weights, const at::Tensor& gradient, const CodedMoment& first,
                        const CodedMoment& second, const at::Tensor& copy, const AdamWStep& step) {
  constexpr auto kOp = "low_bit_adamw_step";
  static_assert(kCodedBlock == kMomentBlock);
  TORCH_CHECK(!weights.digits.defined(), "[", kOp,
              "] got weights with digits, expected fp32 ones: digits are kept on the CPU alone.");
  const at::Tensor& weight = weights.weight;
  const c10::cuda::CUDAGuard guard(weight.device());
  const Copy along = find_copy(kOp, weight, copy);
  const LowBitAdamWArrays arrays{floats(kOp, weight, weight),
                                 floats(kOp, weight, gradient),
                                 find_coded(kOp, weight, first),
                                 find_coded(kOp, weight, second),
                                 along.data,
                                 along.dtype,
                                 find_scale(kOp, weight, step.gradient_scale),
                                 weight.numel()};
  C10_CUDA_CHECK(launch_low_bit_adamw(arrays, make_factors(step), c10::cuda::getCurrentCUDAStream()));
}

}  // namespace fsdp::kernels::cuda
