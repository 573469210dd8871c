// Schedule-free AdamW over a flat range.
#pragma once

#include <cstdint>

#include "kernels/raw/flat/step_factors.h"

namespace fsdp::kernels::raw {

// One update of `count` numbers, each read and written once; see kernels/flat/schedule_free.h for the formula. In the
// first step `iterate` is written and not read. An element's result does not depend on its place in the range.
// Single-threaded, allocates nothing.
void schedule_free(float* weight, const float* gradient, float* iterate, float* squares, int64_t count,
                   const ScheduleFreeFactors& factors, bool is_first);

}  // namespace fsdp::kernels::raw
