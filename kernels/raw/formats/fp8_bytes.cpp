#include "kernels/raw/formats/fp8_bytes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>

namespace fsdp::kernels::raw {
namespace {

constexpr uint8_t kFp8Nan = 0x7F;

// Calls body(block, first, count) for runs of a range that lie in one row of one block; `first` counts from the range's
// begin. One run, where the matrix is one block.
template <class Body>
void for_each_run_of_block(const Fp8Range& range, const Body& body) {
  const Fp8Matrix& matrix = range.matrix;
  if (matrix.num_blocks() == 1) return body(0, int64_t{0}, range.count);
  const int64_t blocks_across = (matrix.columns + matrix.block.columns - 1) / matrix.block.columns;
  for (int64_t at = range.begin, end = range.begin + range.count; at < end;) {
    const int64_t row = at / matrix.columns, column = at % matrix.columns;
    const int64_t across = column / matrix.block.columns;
    const int64_t border = std::min(matrix.columns, (across + 1) * matrix.block.columns);
    const int64_t count = std::min(end - at, border - column);
    body(row / matrix.block.rows * blocks_across + across, at - range.begin, count);
    at += count;
  }
}

uint8_t code_of(float largest) {
  return largest > 0 ? static_cast<uint8_t>(fp8_exponent(largest, Fp8Format::kE4m3) + kFp8CodeBias) : uint8_t{0};
}

int exponent_of(uint8_t code) { return code == 0 ? 0 : int{code} - kFp8CodeBias; }

float two_to_the(int exponent) { return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23); }

// To the nearest, ties to even. |x| is at most 448, or x is not finite.
uint8_t e4m3_of(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint8_t>(bits >> 31 << 7);
  uint32_t size = bits & 0x7FFFFFFFu;
  if (size >= 0x7F800000u) return sign | kFp8Nan;
  constexpr uint32_t kSmallestNormal = (127u - 6) << 23;
  if (size < kSmallestNormal)  // multiples of 2^-9; adding leaves them
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 16384.0F) & 0xFu);
  size += 0x7FFFFu + ((size >> 20) & 1u);
  return sign | static_cast<uint8_t>((size >> 20) - ((127u - 7) << 3));
}

float value_of(uint8_t byte, int exponent) {
  const int power = (byte >> 3) & 15, digits = byte & 7;
  if ((byte & 0x7F) == kFp8Nan) return std::numeric_limits<float>::quiet_NaN();
  const float size = power == 0 ? std::ldexp(static_cast<float>(digits), exponent - 9)
                                : std::ldexp(static_cast<float>(8 + digits), exponent + power - 10);
  return (byte & 0x80) != 0 ? -size : size;
}

// What the 256 bytes stand for, for each code that comes along.
template <class T>
class Fp8Tables {
 public:
  using Table = std::array<T, 256>;

  const Table& of(uint8_t code) {
    std::unique_ptr<Table>& table = tables_[code];
    if (!table) {
      table = std::make_unique<Table>();
      for (size_t byte = 0; byte < table->size(); ++byte)
        (*table)[byte] = from_float<T>(value_of(static_cast<uint8_t>(byte), exponent_of(code)));
    }
    return *table;
  }

 private:
  std::array<std::unique_ptr<Table>, 256> tables_;
};

template <class T>
void raise_codes(const T* x, const Fp8Range& range, uint8_t* codes) {
  for_each_run_of_block(range, [&](int64_t block, int64_t first, int64_t count) {
    float largest = 0;
    for (int64_t i = first; i < first + count; ++i) {
      const float size = std::fabs(to_float(x[i]));
      if (size <= std::numeric_limits<float>::max()) largest = std::max(largest, size);
    }
    codes[block] = std::max(codes[block], code_of(largest));
  });
}

template <class T>
void write_bytes(const T* x, const Fp8Range& range, const uint8_t* codes, uint8_t* bytes) {
  for_each_run_of_block(range, [&](int64_t block, int64_t first, int64_t count) {
    const float shrink = two_to_the(-exponent_of(codes[block]));
    for (int64_t i = first; i < first + count; ++i) bytes[i] = e4m3_of(to_float(x[i]) * shrink);
  });
}

template <class T>
void read_bytes(const uint8_t* bytes, const Fp8Range& range, const uint8_t* codes, T* out) {
  Fp8Tables<T> tables;
  for_each_run_of_block(range, [&](int64_t block, int64_t first, int64_t count) {
    const auto& table = tables.of(codes[block]);
    for (int64_t i = first; i < first + count; ++i) out[i] = table[bytes[i]];
  });
}

}  // namespace

void raise_fp8_codes(const float* x, const Fp8Range& range, uint8_t* codes) { raise_codes(x, range, codes); }
void raise_fp8_codes(const Bf16* x, const Fp8Range& range, uint8_t* codes) { raise_codes(x, range, codes); }

void to_fp8_bytes(const float* x, const Fp8Range& range, const uint8_t* codes, uint8_t* bytes) {
  write_bytes(x, range, codes, bytes);
}
void to_fp8_bytes(const Bf16* x, const Fp8Range& range, const uint8_t* codes, uint8_t* bytes) {
  write_bytes(x, range, codes, bytes);
}

void from_fp8_bytes(const uint8_t* bytes, const Fp8Range& range, const uint8_t* codes, float* out) {
  read_bytes(bytes, range, codes, out);
}
void from_fp8_bytes(const uint8_t* bytes, const Fp8Range& range, const uint8_t* codes, Bf16* out) {
  read_bytes(bytes, range, codes, out);
}

}  // namespace fsdp::kernels::raw
