// Causal attention with grouped heads over whole rows or packed documents.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

// softmax(q k^T / sqrt(D), causal) v inside each document, differentiable in q, k and v.
//   q [B, T, H, D], k and v [B, T, K, D], H a multiple of K; all fp32 or all bf16, on one device, CPU or CUDA; result
//   [B, T, H, D].
//   document_lengths: positive, of the B * T tokens in order, adding up to B * T; empty: each row is one document.
//   window: so many keys of its document a query sees at most, the last of them its own; 0: all before it.
// Query head h reads key head h / (H / K). Throws c10::Error on shapes or dtypes that do not fit. Saves q, k, v, the
// result and one number per query and head. After: Dao et al., FlashAttention (saving log-sum-exp, recomputing in the
// backward).
// On the CPU sums are fp32; in bf16, on processors that multiply pairs of it, the weights of the softmax and the
// gradients of its scores are rounded to bf16 before they are multiplied, elsewhere only results are rounded. Keys
// after a query or before its window are never computed with (beyond its block of 64), documents cost nothing extra,
// and no tensor of T * T elements is made: scratch memory is 64 T + 8 T D numbers per thread. Results do not depend on
// the number of threads. Operators: fsdp::causal_attention_forward, fsdp::causal_attention_backward. On CUDA it is
// fsdp::causal_attention over ATen's attention operators: cuDNN for whole rows on Hopper and later, flash attention
// otherwise; fp32 works, at the cost of T * T numbers per head. See kernels/cuda/causal_attention_cuda.cpp.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            at::IntArrayRef document_lengths = {}, int64_t window = 0);

}  // namespace fsdp::kernels
