// Token cross entropy over a vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/raw/rows/logit_limits.h"

namespace fsdp::kernels {

inline constexpr int64_t kIgnoreIndex = -100;  // target value that carries no loss, as in torch and Hugging Face

enum class Reduction { kSum, kMean };  // over the targets that are not kIgnoreIndex

// What is added to the cross entropy of a row, or blended into it.
struct LossTerms {
  double z_loss = 0;           // z: adds z * log_sum_exp(logits)^2, which keeps logits near 0 (PaLM, section 5)
  double label_smoothing = 0;  // e: the target is 1 - e at its entry and e / V everywhere, as in torch
};

// -log_softmax(logits)[target], summed or averaged over the valid targets, differentiable in the logits; with `terms`
// (1 - e) * that + e * mean(-log_softmax(logits)) + z * log_sum_exp(logits)^2.
//   logits_NV fp32 or bf16, targets_N int64, on one device, CPU or CUDA; result: fp32 scalar. Maths in fp32, the sum
//   over rows in fp64.
// With no valid target the result is 0 and so is the gradient (torch gives NaN for the mean).
// Saves logits, targets and one fp32 number per row; the backward writes the gradient, in the logits' dtype, in one
// pass. Targets are taken as they are: a causal model's labels must already be shifted. Operators:
// fsdp::cross_entropy_forward, fsdp::cross_entropy_backward. Throws c10::Error if shapes or terms do not fit, and on
// the CPU if a target is neither kIgnoreIndex nor in [0, V), naming its value. On CUDA, where a look at the targets
// would make the host wait, such a target makes the loss and its row's gradient NaN; the number of valid targets stays
// there, too.
at::Tensor cross_entropy(const at::Tensor& logits_NV, const at::Tensor& targets_N,
                         Reduction reduction = Reduction::kMean, const LossTerms& terms = {});

// cross_entropy(x W^T, targets) without the logits: x_NE [N, E], weight_VE [V, E], both fp32, bf16 or fp16. Rows are
// multiplied a chunk at a time, of kLogitBytesAtATime. What the forward keeps for the backward, beside the inputs and
// one number per row, goes by size:
//   - logits of at most kMostLogitBytesKept: all of them;
//   - a weight of at most kMostGradientKept numbers, or a frozen one: the gradients of x and (fp32) of the weight in
//     place of x, as Liger Kernel does; the backward scales them;
//     fp16 does not: a loss scale would come too late for them;
//   - else nothing, and the backward makes the logits once more: a fourth product.
// The weight's gradient is summed over chunks in fp32, in its GradientSlot where there is one.
// Operator: fsdp::linear_cross_entropy.
// On CUDA chunks are larger (at most 512 MiB of logits) and the forward makes the gradients of x and of the weight, in
// their dtypes, at once, if they will be asked for: three products instead of four. They are what is saved, the
// backward scales and gives them away, and a second backward through the same forward is an error. The sum over chunks
// of a bf16 weight's gradient is bf16 for up to 16 chunks, else fp32: see kernels/cuda/linear_cross_entropy_cuda.cpp.
at::Tensor linear_cross_entropy(const at::Tensor& x_NE, const at::Tensor& weight_VE, const at::Tensor& targets_N,
                                Reduction reduction = Reduction::kMean, const LossTerms& terms = {});

// The same with a frozen weight W [vocab, E] that rests as NF4 codes, `record` its nf4_bytes(vocab * E) bytes; x in
// fp32 or bf16 on the CPU. W is decoded once, to x's dtype, and freed before this returns: the forward makes the
// gradient of x, which is all that it keeps. Operator: fsdp::nf4_linear_cross_entropy.
at::Tensor nf4_linear_cross_entropy(const at::Tensor& x_NE, const at::Tensor& record, int64_t vocab,
                                    const at::Tensor& targets_N, Reduction reduction = Reduction::kMean,
                                    const LossTerms& terms = {});

// How many targets are not kIgnoreIndex: what the mean divides by. targets int64, any shape, on the CPU.
int64_t count_valid_targets(const at::Tensor& targets);

}  // namespace fsdp::kernels
