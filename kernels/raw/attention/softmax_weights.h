// Weights of a softmax, for drawing from it.
#pragma once

#include <cstdint>

namespace fsdp::kernels::raw {

// to[i] = e^((x[i] - highest of x) * scale), 0 where x[i] is NaN or -inf; scale > 0. Returns the index of the highest,
// the first of equals; -1 if none is above -inf, and then writes zeros. Single-threaded, allocates nothing.
int64_t softmax_weights(const float* x, int64_t count, float scale, float* to);

}  // namespace fsdp::kernels::raw
