#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "fsdp/parallel/ranks.h"

namespace fsdp::parallel {

// What a query sees of the tokens before it and of itself.
struct ContextView {
  // [B, T] int64, the same on every rank: those of its own document only; undefined: of all.
  at::Tensor documents_BT = {};
  int64_t window = 0;  // and so many at most, the last of them itself; 0: all
};

// Throw Error(kUsage) for tensors that are no queries, keys and values of a rank, and documents that are not of
// sequences of `tokens`. Local.
void check_context_shapes(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                          const std::string& layer);
void check_documents(const ContextView& view, int64_t tokens, const std::string& layer);

// What the queries of this rank see of the keys of all ranks, for sequences of T tokens that are cut over `ranks` (axis
// "cp") as zigzag.h says: 0 where they do, minus infinity where not, [T/N, T], or [B, 1, T/N, T] with documents, of
// `options` (the queries'). Made once for all layers with one view. Local. Throws Error(kUsage) for T that does not
// fit.
at::Tensor context_mask(int64_t tokens, const ContextView& view, const Ranks& ranks, const at::TensorOptions& options);

// Causal attention of such sequences. q [B, T/N, H, D]; k, v [B, T/N, K, D], of which K divides H (grouped queries);
// RoPE is in them already. Returns [B, T/N, H, D]. Keys and values are gathered, all of them at once: a rank holds
// those of all tokens until the backward. COLLECTIVE over the axis, and so is the backward; of k and v together with S
// bytes on a rank either receives (N-1) S. Throws Error(kUsage) for shapes that do not fit, and what Ranks throws,
// naming `layer`.
at::Tensor context_attention(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                             const at::Tensor& mask, const std::shared_ptr<Ranks>& ranks, const std::string& layer);

}  // namespace fsdp::parallel
