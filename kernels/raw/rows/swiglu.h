// SwiGLU of a range: silu(gate) * up. Single-threaded, allocate nothing.
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw {

// y[i] = silu(gate[i]) * up[i], silu(gate) rounded to the type of y first.
void swiglu(const float* gate, const float* up, float* y, int64_t count);
void swiglu(const Bf16* gate, const Bf16* up, Bf16* y, int64_t count);

void swiglu_backward(const float* grad_y, const float* gate, const float* up, float* grad_gate, float* grad_up,
                     int64_t count);
void swiglu_backward(const Bf16* grad_y, const Bf16* gate, const Bf16* up, Bf16* grad_gate, Bf16* grad_up,
                     int64_t count);

}  // namespace fsdp::kernels::raw
