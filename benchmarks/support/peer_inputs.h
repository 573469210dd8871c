// Weights and tokens that the peers in benchmarks/peer make too.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/decoder.h"

namespace fsdp::benchmarks {

// Same generator, one seed per parameter in the order of their names.
void fill_weights(models::Decoder& model);

// count + 1 ids below `vocabulary` for this rank (Knuth's MMIX generator).
at::Tensor make_tokens(int64_t count, int rank, int64_t vocabulary);

}  // namespace fsdp::benchmarks
