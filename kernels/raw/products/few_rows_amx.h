// few_rows() in bf16 on processors with tile registers (Intel AMX).
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw::amx {

inline constexpr int64_t kGroup = 16;  // rows that a tile holds
inline constexpr int64_t kBlock = 64;  // outputs that are summed at once

// Whether the processor has AMX for bf16 and the system lets this process use it, and the kernels are not held to
// a plainer set.
bool is_available();

// Whether a weight [outputs, k] can be read without copies.
constexpr bool fits(int64_t outputs, int64_t k) { return outputs % 16 == 0 && k % 32 == 0; }

// Numbers of bf16 that pack() writes.
constexpr int64_t packed_size(int64_t rows, int64_t k) { return rows <= kGroup ? rows * k : (rows + 15) / 16 * 16 * k; }

// x [rows, k] to groups of 16 rows (the only one may be smaller, the last of several is filled up with zeros) of
// [k / 2, rows of the group, 2].
void pack(const Bf16* x, int64_t rows, int64_t k, Bf16* packed);

// y[row * stride + output] = x[row] . weight[output] for outputs 0 .. outputs - 1, a multiple of 16. Sums in fp32, in
// an order that does not depend on the number of rows or outputs. Leaves the thread's tile configuration as it was.
void multiply(const Bf16* packed, const Bf16* weight, Bf16* y, int64_t rows, int64_t k, int64_t stride,
              int64_t outputs);

}  // namespace fsdp::kernels::raw::amx
