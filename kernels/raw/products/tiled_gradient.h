// The gradient of a linear layer's weight in bf16 on processors with tile registers (Intel AMX).
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw {

// Numbers of scratch memory, 64-byte aligned, for a C with n columns.
int64_t tiled_gradient_scratch(int64_t n);

// C [m, n] = scale * A^T B, added to C if `add`, of A [depth, m] and B [depth, n], depth > 0, all row-major with the
// given strides. Sums in fp32: of 1,024 rows each, added up in their order. Where amx::is_available(). Single-threaded,
// allocates nothing.
void tiled_gradient(int64_t m, int64_t n, int64_t depth, const Bf16* a, int64_t a_stride, const Bf16* b,
                    int64_t b_stride, float scale, float* c, int64_t c_stride, bool add, float* scratch);

}  // namespace fsdp::kernels::raw
