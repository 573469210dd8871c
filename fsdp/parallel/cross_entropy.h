#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "fsdp/parallel/ranks.h"

namespace fsdp::parallel {

// Cross entropy of logits whose vocabulary is cut over `ranks`, in nats for each target, without gathering the logits.
// logits [T, V/N]: this rank's columns, in rank order; targets [T]: int64 numbers of the whole vocabulary, the same on
// every rank. Returns [T], fp32 (fp64 of fp64 logits), equal on every rank; 0 and without gradient where the target is
// `ignored`. Forward is COLLECTIVE over the axis: a rank receives (N-1) T + 4 (N-1)/N T numbers; backward is local.
// Throws Error(kUsage) for shapes that do not fit.
at::Tensor vocab_cross_entropy(const at::Tensor& logits, const at::Tensor& targets, const std::shared_ptr<Ranks>& ranks,
                               int64_t ignored = -100);

}  // namespace fsdp::parallel
