// Optimizer steps on the current stream of their tensors' device: entries of kernels/flat/flat_kernels.h.
#pragma once

#include "kernels/flat/flat_kernels.h"

namespace fsdp::kernels::cuda {

void adamw_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& m, const at::Tensor& v,
                const at::Tensor& copy, const AdamWStep& step);
void sgd_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& buffer, const at::Tensor& copy,
              const SGDStep& step);
void lion_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& momentum, const at::Tensor& copy,
               const LionStep& step);
void schedule_free_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& iterate,
                        const at::Tensor& squares, const at::Tensor& copy, const ScheduleFreeStep& step);
void low_bit_adamw_step(const KeptWeights& weights, const at::Tensor& gradient, const CodedMoment& first,
                        const CodedMoment& second, const at::Tensor& copy, const AdamWStep& step);

}  // namespace fsdp::kernels::cuda
