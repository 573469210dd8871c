#pragma once

#include <cstdint>
#include <string_view>

namespace fsdp::io {

// Element types of GGUF files, by the numbers that the format has for them. kQ8_0: blocks of 32 numbers, a scale in
// half precision and 32 integers of 8 bits.
enum class GgmlType : uint32_t { kF32 = 0, kF16 = 1, kQ8_0 = 8, kBF16 = 30 };

std::string_view name(GgmlType type);

// Elements that are stored together: rows have whole blocks.
int64_t block_elements(GgmlType type);

// Bytes of `elements`, whole blocks of them.
int64_t bytes_of(GgmlType type, int64_t elements);

// Stores one row, rounding to the nearest: ties to even, in kQ8_0 away from zero (as ggml does).
// REQUIRES: `count` is a multiple of block_elements(type); `out` has bytes_of(type, count).
void encode_row(GgmlType type, const float* values, int64_t count, char* out);

}  // namespace fsdp::io
