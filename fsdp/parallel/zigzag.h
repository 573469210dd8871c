#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::parallel {

// Which tokens of a sequence a rank has under context parallelism: of 2N equal chunks the r-th and the r-th from the
// end, so that with causal attention every rank has equally much to do. After: Llama 3 (Dubey et al. 2024). All local.
// Errors: Error(kUsage) where 2N does not divide the tokens, with the nearest legal numbers.

// Their positions in the sequence, [tokens / ranks] int64, in order; what RoPE wants.
at::Tensor zigzag_positions(int64_t tokens, int rank, int ranks);
// Those of `x` along `dim`: ids, targets, positions.
at::Tensor zigzag_part(const at::Tensor& x, int64_t dim, int rank, int ranks);
// The ranks' parts, side by side along `dim` in rank order, in the order of the sequence.
at::Tensor zigzag_in_order(const at::Tensor& parts, int64_t dim, int ranks);

}  // namespace fsdp::parallel
