// The seam through which flat memory of a device that is not the CPU gets its kernels: a library that is loaded on
// demand provides them, and the functions of adamw.h, sgd.h, lion.h, schedule_free.h, low_bit_adamw.h, pack.h,
// sum_chunks.h and sum_squares.h call them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/flat/adamw.h"
#include "kernels/flat/lion.h"
#include "kernels/flat/low_bit_adamw.h"
#include "kernels/flat/schedule_free.h"
#include "kernels/flat/sgd.h"

namespace fsdp::kernels {

// Arguments as in those headers, on one device. They run on its current stream and return before they are done; the
// host waits for nothing. pack_gradient, sum_chunks and sum_squares get contiguous tensors of fp32, bf16 or fp16.
struct FlatKernels {
  void (*adamw_step)(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& m, const at::Tensor& v,
                     const at::Tensor& copy, const AdamWStep& step);
  void (*sgd_step)(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& buffer,
                   const at::Tensor& copy, const SGDStep& step);
  void (*lion_step)(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& momentum,
                    const at::Tensor& copy, const LionStep& step);
  void (*schedule_free_step)(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& iterate,
                             const at::Tensor& squares, const at::Tensor& copy, const ScheduleFreeStep& step);
  void (*low_bit_adamw_step)(const KeptWeights& weights, const at::Tensor& gradient, const CodedMoment& first,
                             const CodedMoment& second, const at::Tensor& copy, const AdamWStep& step);
  void (*pack_gradient)(const at::Tensor& destination, const at::Tensor& gradient, double scale, bool add);
  void (*sum_chunks)(const at::Tensor& output, const std::vector<at::Tensor>& chunks, bool add);
  at::Tensor (*sum_squares)(const at::Tensor& values);  // 0-dim fp64
};

// One set for each device type of a process; null takes it away. `kernels` must outlive its use. Thread-safe.
void set_flat_kernels(c10::DeviceType device, const FlatKernels* kernels);
const FlatKernels* find_flat_kernels(c10::DeviceType device);  // null: none

// Those for the device of `tensors` if they take all of them: contiguous, on one device, fp32, bf16 or fp16. Else null.
const FlatKernels* find_flat_kernels(at::TensorList tensors);
// Those for the device of `tensor`, which `op` cannot do without. Throws where it has none.
const FlatKernels& need_flat_kernels(const char* op, const at::Tensor& tensor);

// Whether the raw kernels of the CPU take it: fp32, contiguous.
bool is_cpu_float(const at::Tensor& tensor);

}  // namespace fsdp::kernels
