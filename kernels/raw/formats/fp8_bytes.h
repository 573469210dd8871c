// Matrices as e4m3 bytes with a power of two per block: the numbers of round_to_fp8(), to be sent.
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"
#include "kernels/raw/formats/fp8.h"

namespace fsdp::kernels::raw {

// Elements lie row by row; blocks are numbered row by row.
struct Fp8Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  Fp8Block block;

  int64_t num_blocks() const { return num_fp8_blocks(rows, columns, block); }
};

// Elements [begin, begin + count) of a matrix, which may begin and end anywhere in it.
struct Fp8Range {
  Fp8Matrix matrix;
  int64_t begin = 0;
  int64_t count = 0;
};

// The exponent of a block plus this, so that the larger exponent has the larger code; 0: only zeros were seen.
constexpr int kFp8CodeBias = 128;

// Raises `codes` [num_blocks] to what the elements x [count] need: the largest over all ranges of a matrix is the code
// of the exponent that round_to_fp8() would choose. Functions are single-threaded.
void raise_fp8_codes(const float* x, const Fp8Range& range, uint8_t* codes);
void raise_fp8_codes(const Bf16* x, const Fp8Range& range, uint8_t* codes);

// The elements as bytes, whose exponents are no lower than they need; and back, to what round_to_fp8() makes of them.
void to_fp8_bytes(const float* x, const Fp8Range& range, const uint8_t* codes, uint8_t* bytes);
void to_fp8_bytes(const Bf16* x, const Fp8Range& range, const uint8_t* codes, uint8_t* bytes);
void from_fp8_bytes(const uint8_t* bytes, const Fp8Range& range, const uint8_t* codes, float* out);
void from_fp8_bytes(const uint8_t* bytes, const Fp8Range& range, const uint8_t* codes, Bf16* out);

}  // namespace fsdp::kernels::raw
