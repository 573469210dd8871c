// Causal attention of one document and one key head: what a thread works on. After Dao et al., FlashAttention, in that
// probabilities are never kept and the backward makes them again from each query's log-sum-exp. All are single-threaded
// and allocate nothing: `memory` is scratch, 64-byte aligned.
#pragma once

#include "kernels/raw/attention/causal_attention_parts.h"

namespace fsdp::kernels::raw::attention {

// In fp32, whatever the tensors hold. Scratch for tasks of `sizes`, in bytes.
int64_t forward_bytes(const Sizes& sizes);
int64_t backward_bytes(const Sizes& sizes);
void forward(const Task& task, const Sizes& sizes, const ForwardTensors<float>& tensors, Scratch memory);
void forward(const Task& task, const Sizes& sizes, const ForwardTensors<Bf16>& tensors, Scratch memory);
void backward(const Task& task, const Sizes& sizes, const BackwardTensors<float>& tensors, Scratch memory);
void backward(const Task& task, const Sizes& sizes, const BackwardTensors<Bf16>& tensors, Scratch memory);

// Where has_pair_gemm(): products of bf16 pairs, sums in fp32. Weights of the softmax, and the gradients of the scores,
// are rounded to bf16 before they are multiplied; keys are taken in blocks, with a running highest score and sum per
// query.
int64_t paired_forward_bytes(const Sizes& sizes);
int64_t paired_backward_bytes(const Sizes& sizes);
void paired_forward(const Task& task, const Sizes& sizes, const ForwardTensors<Bf16>& tensors, Scratch memory);
void paired_backward(const Task& task, const Sizes& sizes, const BackwardTensors<Bf16>& tensors, Scratch memory);

}  // namespace fsdp::kernels::raw::attention
