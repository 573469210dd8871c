// What numbers become as fp8 with a power of two per block, in place of the bytes: products of such numbers are exact
// in fp32, so that an ordinary product of them is the product of the fp8 matrices.
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw {

// e4m3 without infinities (the largest number is 448), e5m2 with them (57344).
enum class Fp8Format { kE4m3, kE5m2 };

// Rows and columns that share an exponent; those at the matrix's end may be smaller.
struct Fp8Block {
  int64_t rows = 1;
  int64_t columns = 1;
};

int64_t num_fp8_blocks(int64_t rows, int64_t columns, const Fp8Block& block);

// The exponent of a block whose largest finite number is that: the lowest that keeps it within the format, from -124
// (e5m2: -117), the lowest that bf16 can hold the results of; 0 for 0.
int fp8_exponent(float largest, Fp8Format format);

// fp8_exponent() of n numbers in one block; -128 where all are 0.
int fp8_exponent_of(const float* x, int64_t n, Fp8Format format);
int fp8_exponent_of(const Bf16* x, int64_t n, Fp8Format format);

// out [rows, columns] = 2^e * fp8(2^-e * x), e the block's fp8_exponent().
// Rounds to the nearest, ties to even; what then is too large for fp32 is infinite. NaN stays NaN; an infinity becomes
// NaN in e4m3 and stays one in e5m2. x and out are contiguous and may be the same. `exponents`, where it is not null,
// gets those of the blocks, row by row. `shift` is added to
// them; finite numbers that are too large then become the format's largest. Single-threaded.
// After: "OCP Microscaling Formats (MX) Specification" 1.0, where exponents are rounded down instead, so that the
// largest numbers of a block may be cut off.
void round_to_fp8(const float* x, int64_t rows, int64_t columns, const Fp8Block& block, Fp8Format format, float* out,
                  int8_t* exponents = nullptr, int shift = 0);
void round_to_fp8(const Bf16* x, int64_t rows, int64_t columns, const Fp8Block& block, Fp8Format format, Bf16* out,
                  int8_t* exponents = nullptr, int shift = 0);

}  // namespace fsdp::kernels::raw
