// Matrix products in which a weight meets few rows: what a token of generation costs. All are single-threaded and
// allocate nothing; products are summed in fp32, in an order that depends neither on the rows beside a row nor on the
// number of outputs.
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw {

// x [rows, k] to fp32 rows as few_rows() reads them beside a weight in bf16: of every 32 numbers the even places, then
// the odd ones.
void spread_rows(const float* x, float* to, int64_t rows, int64_t k);
void spread_rows(const Bf16* x, float* to, int64_t rows, int64_t k);

// y[row * stride + output] = x[row] . weight[output]: x [rows, k], spread where the weight is bf16; weight [outputs,
// k].
void few_rows(const float* x, const float* weight, float* y, int64_t rows, int64_t k, int64_t stride, int64_t outputs);
void few_rows(const float* x, const Bf16* weight, float* y, int64_t rows, int64_t k, int64_t stride, int64_t outputs);
void few_rows(const float* x, const Bf16* weight, Bf16* y, int64_t rows, int64_t k, int64_t stride, int64_t outputs);

// The same in pairs, where has_pair_gemm(): x as it lies; denormal numbers count as 0.
void few_rows_of_pairs(const Bf16* x, const Bf16* weight, Bf16* y, int64_t rows, int64_t k, int64_t stride,
                       int64_t outputs);

}  // namespace fsdp::kernels::raw
