// Rows of a matrix as panels of columns, which tiles of products read as they lie, and back.
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw {

// A number of fp32, or a pair of bf16: what products take at a time. Moved as fp32, whose bits are not looked at.
using Word = float;

// x [rows, depth] with rows `stride` apart to [depth, width], zeros beyond the rows; width a multiple of 16, at least
// `rows`.
void pack_panel(const Word* x, int64_t stride, int64_t rows, int64_t depth, Word* to, int64_t width);

// sums [outputs, width] to y[row * stride + output].
void unpack_panel(const float* sums, int64_t outputs, int64_t width, int64_t rows, float* y, int64_t stride);
void unpack_panel(const float* sums, int64_t outputs, int64_t width, int64_t rows, Bf16* y, int64_t stride);

// fp32 of `count` numbers, and back: rounded to the nearest.
void widen(const Bf16* from, float* to, int64_t count);
void narrow(const float* from, Bf16* to, int64_t count);
// The same of rows that begin `from_stride` and `stride` apart.
void narrow_rows(const float* from, int64_t from_stride, int64_t rows, int64_t count, Bf16* to, int64_t stride);

}  // namespace fsdp::kernels::raw
