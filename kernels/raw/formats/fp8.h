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

// out [rows, columns] = 2^e * fp8(2^-e * x), e the block's: the lowest that keeps the largest finite number of the
// block within the format, from the lowest that bf16 can hold the results of (-124; e5m2: -117); 0 in a block of zeros.
// Rounds to the nearest, ties to even; what then is too large for fp32 is infinite. NaN stays NaN; an infinity becomes
// NaN in e4m3 and stays one in e5m2. x and out are contiguous and may be the same. `exponents`, where it is not null,
// gets those of the blocks, row by row. Single-threaded. After: "OCP Microscaling Formats (MX) Specification" 1.0,
// where exponents are rounded down instead, so that the largest numbers of a block may be cut off.
void round_to_fp8(const float* x, int64_t rows, int64_t columns, const Fp8Block& block, Fp8Format format, float* out,
                  int8_t* exponents = nullptr);
void round_to_fp8(const Bf16* x, int64_t rows, int64_t columns, const Fp8Block& block, Fp8Format format, Bf16* out,
                  int8_t* exponents = nullptr);

}  // namespace fsdp::kernels::raw
