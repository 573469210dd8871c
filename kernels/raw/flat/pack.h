// Numbers times a factor, on their way into fp32.
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw {

// to[i] = from[i] * scale. Neither result depends on an element's place.
void scale_to(float* to, const float* from, float scale, int64_t count);
void scale_to(float* to, const Bf16* from, float scale, int64_t count);

// to[i] += from[i] * scale, rounded once where the instruction set has multiply-adds, as LibTorch's add_() does.
void add_scaled(float* to, const float* from, float scale, int64_t count);
void add_scaled(float* to, const Bf16* from, float scale, int64_t count);

}  // namespace fsdp::kernels::raw
