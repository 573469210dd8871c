// Sums of whole ranges.
#pragma once

#include <cstdint>

#include "kernels/raw/flat/stores.h"

namespace fsdp::kernels::raw {

// to = the sum of the chunks, or to += that sum where `add`; one chunk at least, each of `count` numbers. They are
// added as a binary tree: neighbours in pairs, pairs in pairs, and so on; of 7, ((0 1)(2 3))((4 5) 6). So the sum of
// all is that of sums of 2, 4 or 8 neighbours, bit for bit. `stores` is minded without `add`. Single-threaded,
// allocates nothing.
void sum_chunks(float* to, const float* const* chunks, int64_t num_chunks, int64_t count, bool add, Stores stores);

}  // namespace fsdp::kernels::raw
