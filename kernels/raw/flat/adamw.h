// AdamW over a flat range.
#pragma once

#include <cstdint>

#include "kernels/raw/flat/step_factors.h"

namespace fsdp::kernels::raw {

// One update of `count` numbers, each read and written once; see kernels/flat/adamw.h for the formula. An element's
// result does not depend on its place in the range. Single-threaded, allocates nothing.
void adamw(float* weight, const float* gradient, float* m, float* v, int64_t count, const AdamWFactors& factors);

}  // namespace fsdp::kernels::raw
