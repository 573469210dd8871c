#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "fsdp/parallel/ranks.h"

namespace fsdp::parallel {

// What is added to the cross entropy of a token, or blended into it.
struct VocabLossTerms {
  double z_loss = 0;           // z: adds z * log_sum_exp(logits)^2, which keeps logits near 0
  double label_smoothing = 0;  // e: the target is 1 - e at its entry and e / V everywhere
};

// Cross entropy of logits whose vocabulary is cut over `ranks`, in nats for each target, without gathering the logits.
// logits [T, V/N]: this rank's columns, in rank order; targets [T]: int64 numbers of the whole vocabulary, the same on
// every rank. Returns [T], fp32 (fp64 of fp64 logits), equal on every rank; 0 and without gradient where the target is
// `ignored`. Forward is COLLECTIVE over the axis: a rank receives (N-1) T + 4 (N-1)/N T numbers, with label smoothing
// 6 in place of 4; backward is local and has no second derivatives. Throws Error(kUsage) for shapes and terms that do
// not fit, and on the CPU, on every rank, for targets outside the vocabulary; elsewhere their losses are NaN.
at::Tensor vocab_cross_entropy(const at::Tensor& logits, const at::Tensor& targets, const std::shared_ptr<Ranks>& ranks,
                               int64_t ignored = -100, const VocabLossTerms& terms = {});

}  // namespace fsdp::parallel
