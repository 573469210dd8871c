// Lion over a flat range.
#pragma once

#include <cstdint>

#include "kernels/raw/flat/step_factors.h"

namespace fsdp::kernels::raw {

// One update of `count` numbers, each read and written once; see kernels/flat/lion.h for the formula. An element's
// result does not depend on its place in the range. Single-threaded, allocates nothing.
void lion(float* weight, const float* gradient, float* momentum, int64_t count, const LionFactors& factors);

}  // namespace fsdp::kernels::raw
