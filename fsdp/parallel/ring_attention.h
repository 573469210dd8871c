#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "fsdp/parallel/context_attention.h"
#include "fsdp/parallel/context_exchange.h"
#include "fsdp/parallel/ranks.h"

namespace fsdp::parallel {

// kGather or kRing, for keys of a rank like k_BTKD, values as large, and a mask of their dtype. Local; alike on all
// ranks, as their tensors are.
ContextExchange choose_exchange(ContextExchange wanted, const at::Tensor& k_BTKD, bool has_documents,
                                const Ranks& ranks);

// As context_attention(), of `view` in place of its mask: a rank sends its keys and values to the next and receives
// those of the one before, N-1 times, while it computes with what came last. What the view hides wholly is not
// computed. A rank never holds more than two blocks of others' keys and values, and scores of 256 queries with half a
// block; in the backward, for which only its own are kept, three blocks of their gradients too. COLLECTIVE over the
// axis, and so is the backward. Of k and v together with S bytes on a rank the forward receives (N-1) S, the backward
// (N-1) S and as many gradients, which are added up in fp32 at least. Sums in fp32, or fp64 of fp64. No second
// derivatives: who differentiates a gradient again is refused. Errors likewise.
at::Tensor ring_attention(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                          const ContextView& view, const std::shared_ptr<Ranks>& ranks, const std::string& layer);

}  // namespace fsdp::parallel
