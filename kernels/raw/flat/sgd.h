// SGD over a flat range.
#pragma once

#include <cstdint>

#include "kernels/raw/flat/step_factors.h"

namespace fsdp::kernels::raw {

// One update of `count` numbers; see kernels/flat/sgd.h for the formula. `buffer`: null without momentum. An element's
// result does not depend on its place in the range. Single-threaded, allocates nothing.
void sgd(float* weight, const float* gradient, float* buffer, int64_t count, const SGDFactors& factors, bool nesterov);

}  // namespace fsdp::kernels::raw
