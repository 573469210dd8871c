// A linear layer in bf16 on processors with tile registers (Intel AMX), where rows are many.
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw {

// Whether rows are so many that packing a weight of depth k costs less than to read it as it lies (few_rows.h, gemm.h).
bool pays_tiled_product(int64_t rows, int64_t k);

// Numbers of scratch memory, 64-byte aligned, for depth k.
int64_t tiled_product_scratch(int64_t k);

// y [rows, outputs] with rows `stride` apart = x [rows, k] weight [outputs, k]^T, rounded once; k is even, x and the
// weight lie at multiples of 4 bytes. The sums are those of pair_gemm(): an element of y depends neither on the number
// of rows nor on that of outputs. Where amx::is_available(). Single-threaded, allocates nothing.
void tiled_product(int64_t rows, int64_t outputs, int64_t k, const Bf16* x, const Bf16* weight, Bf16* y, int64_t stride,
                   float* scratch);

}  // namespace fsdp::kernels::raw
