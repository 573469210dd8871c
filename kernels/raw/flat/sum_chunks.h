// Sums of whole ranges.
#pragma once

#include <cstdint>

#include "kernels/raw/flat/stores.h"

namespace fsdp::kernels::raw {

// to = chunks[0] + chunks[1] + ... in that order, or to += that sum where `add`; one chunk at least, each of `count`
// numbers. `stores` is minded without `add`. Single-threaded, allocates nothing.
void sum_chunks(float* to, const float* const* chunks, int64_t num_chunks, int64_t count, bool add, Stores stores);

}  // namespace fsdp::kernels::raw
