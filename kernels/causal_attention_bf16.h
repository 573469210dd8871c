// causal_attention() in bf16 on processors that multiply pairs of it (AVX512_BF16): products of bf16, sums in fp32.
#pragma once

#include "kernels/causal_attention_parts.h"

namespace fsdp::kernels::attention {

// Bytes of scratch memory for tasks of `sizes`, 64-byte aligned.
int64_t paired_forward_bytes(const Sizes& sizes);
int64_t paired_backward_bytes(const Sizes& sizes);

// One task on the calling thread, where has_pair_gemm(). Weights of the softmax, and the gradients of the scores, are
// rounded to bf16 before they are multiplied; after Dao et al., FlashAttention: keys are taken in blocks, with a
// running highest score and sum per query.
void paired_forward(const Task& task, const Sizes& sizes, const ForwardTensors<c10::BFloat16>& tensors, Scratch memory);
void paired_backward(const Task& task, const Sizes& sizes, const BackwardTensors<c10::BFloat16>& tensors,
                     Scratch memory);

}  // namespace fsdp::kernels::attention
