#include "kernels/raw/products/amx.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "kernels/raw/bf16_pairs.h"
#include "kernels/raw/cpu_isa.h"
#include "kernels/raw/products/panels.h"

#if defined(__x86_64__) && defined(__GNUC__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define FSDP_HAS_AMX 1
#endif

namespace fsdp::kernels::raw::amx {

void pack(const Bf16* x, int64_t rows, int64_t k, Bf16* packed) {
  const int64_t width = std::min(rows, kGroup), pairs = k / 2;
  for (int64_t first = 0; first < rows; first += kGroup) {
    const int64_t count = std::min(width, rows - first);
    for (int64_t pair = 0; pair < pairs; ++pair, packed += 2 * width) {
      for (int64_t row = 0; row < count; ++row)
        std::memcpy(packed + 2 * row, x + (first + row) * k + 2 * pair, 2 * sizeof(Bf16));
      if (count < width) std::memset(packed + 2 * count, 0, static_cast<size_t>(width - count) * 4);
    }
  }
}

#ifdef FSDP_HAS_AMX
namespace {

// Of registers: sums 0 to 3, two of A, two of B.
constexpr int kSums[] = {0, 1, 2, 3}, kLeft[] = {4, 5}, kRight[] = {6, 7};
constexpr int64_t kTileRows = 16, kTilePairs = 16;
constexpr int64_t kSide = 2 * kTileRows;  // of the largest block

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};

  // Rows of so many words.
  void shape(int tile, int64_t tile_rows, int64_t words) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    bytes_per_row[tile] = static_cast<uint16_t>(4 * words);
  }
};

bool has_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return (d >> 22 & 1) != 0 && (d >> 24 & 1) != 0 && has_bf16_pairs();  // AMX-BF16, AMX-TILE
}

// Linux hands tile registers out on request.
bool request_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#define FSDP_TILES __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512bf16")))

// The compiler does not see that instructions of tiles read and write all of what `memory` points to, or more.
void finish_stores(const void* memory) { asm volatile("" ::"r"(memory) : "memory"); }

// Tiles of A [rows, pairs], B [pairs, columns] and C [rows, columns] until the end of a scope.
class Tiles {
 public:
  FSDP_TILES Tiles(int64_t rows, int64_t pairs, int64_t columns) {
    finish_stores(&before_);
    _tile_storeconfig(&before_);
    TileConfig config;
    for (const int tile : kSums) config.shape(tile, rows, columns);
    for (const int tile : kLeft) config.shape(tile, rows, pairs);
    for (const int tile : kRight) config.shape(tile, pairs, columns);
    finish_stores(&config);
    _tile_loadconfig(&config);
  }
  FSDP_TILES ~Tiles() {
    finish_stores(&before_);
    _tile_loadconfig(&before_);
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  TileConfig before_;
};

struct Product {
  int64_t pairs;  // a multiple of those of a tile, or as many as its tiles were made for
  PairedOperand a;
  const Bf16Pair* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  bool add;

  Product from(int64_t row, int64_t column) const {
    Product part = *this;
    part.a = a.from(row);
    part.b += column;
    part.c += row * c_stride + column;
    return part;
  }
};

// C of kRows x kColumns tiles, one or two each; meanwhile() is called once per tile of the sum.
template <int kRows, int kColumns, class Meanwhile>
FSDP_TILES inline void multiply_tiles(const Product& x, Meanwhile meanwhile) {
  const int64_t a_bytes = 4 * x.a.row_stride, b_bytes = 4 * x.b_stride, c_bytes = 4 * x.c_stride;
  const Bf16Pair *a = x.a.data, *lower_a = a + kTileRows * x.a.row_stride, *b = x.b;
  float* lower_c = x.c + kTileRows * x.c_stride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if (x.add) {
    _tile_loadd(0, x.c, c_bytes);
    if constexpr (kColumns > 1) _tile_loadd(1, x.c + kTileRows, c_bytes);
    if constexpr (kRows > 1) _tile_loadd(2, lower_c, c_bytes);
    if constexpr (kRows > 1 && kColumns > 1) _tile_loadd(3, lower_c + kTileRows, c_bytes);
  }
  for (int64_t i = 0; i < x.pairs; i += kTilePairs, b += kTilePairs * x.b_stride) {
    _tile_loadd(6, b, b_bytes);
    _tile_loadd(4, a + i, a_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kColumns > 1) {
      _tile_loadd(7, b + kTileRows, b_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRows > 1) {
      _tile_loadd(5, lower_a + i, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (kRows > 1 && kColumns > 1) _tile_dpbf16ps(3, 5, 7);
    meanwhile();
  }
  _tile_stored(0, x.c, c_bytes);
  if constexpr (kColumns > 1) _tile_stored(1, x.c + kTileRows, c_bytes);
  if constexpr (kRows > 1) _tile_stored(2, lower_c, c_bytes);
  if constexpr (kRows > 1 && kColumns > 1) _tile_stored(3, lower_c + kTileRows, c_bytes);
}

// All columns of kRows tiles of rows.
template <int kRows>
void multiply_rows(const Product& x, int64_t row, int64_t n) {
  int64_t column = 0;
  for (; column + 2 * kTileRows <= n; column += 2 * kTileRows) multiply_tiles<kRows, 2>(x.from(row, column), [] {});
  if (column < n) multiply_tiles<kRows, 1>(x.from(row, column), [] {});
}

// m: a multiple of a tile's rows, or one tile of fewer.
FSDP_TILES void multiply_all(const Product& x, int64_t m, int64_t n) {
  const Tiles tiles(std::min(m, kTileRows), std::min(x.pairs, kTilePairs), std::min(n, kTileRows));
  int64_t row = 0;
  for (; row + 2 * kTileRows <= m; row += 2 * kTileRows) multiply_rows<2>(x, row, n);
  if (row < m) multiply_rows<1>(x, row, n);
}

// Asks for a few of some lines each time it is called: what is written must be read first, from further away than the
// operands, and all at once they would keep those waiting.
class Fetch {
 public:
  FSDP_TILES Fetch(const Bf16* first, int64_t stride, int64_t lines, int64_t calls)
      : next_(first), end_(first + lines * stride), stride_(stride), at_a_time_((lines + calls - 1) / calls) {}
  FSDP_TILES void operator()() {
    for (int64_t i = 0; i < at_a_time_ && next_ < end_; ++i, next_ += stride_) __builtin_prefetch(next_, 1);
  }

 private:
  const Bf16 *next_, *end_;
  int64_t stride_, at_a_time_;
};

// From sums [kSide, kSide].
FSDP_TILES inline void round_block(const float* sums, int64_t count, Bf16* y, int64_t stride) {
  if (count < kSide) return narrow_rows(sums, kSide, kSide, count, y, stride);
  for (int64_t row = 0; row < kSide; ++row, sums += kSide, y += stride) {
    const auto rounded = _mm512_cvtne2ps_pbh(_mm512_load_ps(sums + kTileRows), _mm512_load_ps(sums));
    _mm512_storeu_si512(y, (__m512i)rounded);
  }
}

// Of whole blocks of rows and whole tiles of pairs. Tiles have one shape: the last block's columns may be those of one.
FSDP_TILES void multiply_blocks(const Product& x, int64_t rows, Bf16* y, int64_t count, int64_t stride) {
  const Tiles tiles(kTileRows, kTilePairs, kTileRows);
  for (int64_t row = 0; row < rows; row += kSide)
    for (int64_t column = 0; column < count; column += kSide) {
      const Product block = {x.pairs, x.a.from(row), x.b + column, x.b_stride, x.c, kSide, false};
      Bf16* to = y + row * stride + column;
      const Fetch fetch(to, stride, kSide, x.pairs / kTilePairs);
      count - column > kTileRows ? multiply_tiles<2, 2>(block, fetch) : multiply_tiles<2, 1>(block, fetch);
      finish_stores(x.c);
      round_block(x.c, std::min(kSide, count - column), to, stride);
    }
}

// What is no multiple of a tile has tiles of its own.
void multiply_any(const Product& x, int64_t m, int64_t n) {
  const int64_t whole = m / kTileRows * kTileRows;
  if (whole > 0) multiply_all(x, whole, n);
  if (whole < m) multiply_all(x.from(whole, 0), m - whole, n);
}

}  // namespace

bool is_available() {
  static const bool available = has_instructions() && request_tiles();
  return available && cpu_isa() == CpuIsa::kAvx512;
}

void pair_gemm(int64_t m, int64_t n, int64_t pairs, PairedOperand a, const Bf16Pair* b, int64_t b_stride, float* c,
               int64_t c_stride, bool add) {
  finish_stores(c);
  const int64_t whole = pairs / kTilePairs * kTilePairs;
  if (whole > 0) multiply_any({whole, a, b, b_stride, c, c_stride, add}, m, n);
  if (whole == pairs) return;
  a.data += whole;
  multiply_any({pairs - whole, a, b + whole * b_stride, b_stride, c, c_stride, add || whole > 0}, m, n);
}

void multiply_rounded(int64_t rows, int64_t count, int64_t pairs, PairedOperand a, const Bf16Pair* b, int64_t b_stride,
                      Bf16* y, int64_t stride) {
  alignas(64) float sums[kSide * kSide];
  const int64_t whole = pairs % kTilePairs == 0 ? rows / kSide * kSide : 0;
  if (whole > 0) multiply_blocks({pairs, a, b, b_stride, sums, kSide, false}, whole, y, count, stride);
  for (int64_t row = whole; row < rows; row += kSide)
    for (int64_t column = 0; column < count; column += kSide) {
      const int64_t some = std::min(kSide, rows - row), width = std::min(kSide, whole_lanes(count - column));
      amx::pair_gemm(some, width, pairs, a.from(row), b + column, b_stride, sums, kSide, false);
      narrow_rows(sums, kSide, some, std::min(kSide, count - column), y + row * stride + column, stride);
    }
}

void multiply(const Bf16* packed, const Bf16* weight, Bf16* y, int64_t rows, int64_t k, int64_t stride,
              int64_t outputs) {
  const int64_t width = std::min(rows, kGroup), pairs = k / 2;
  const auto *x = reinterpret_cast<const Bf16Pair*>(packed), *from = reinterpret_cast<const Bf16Pair*>(weight);
  alignas(64) float sums[kBlock * kGroup];
  for (int64_t first = 0; first < outputs; first += kBlock) {  // the block stays in the cache for all groups
    const int64_t count = std::min(kBlock, outputs - first);
    for (int64_t group = 0; group < rows; group += kGroup) {
      pair_gemm(count, width, pairs, {from + first * pairs, pairs, 1}, x + group * pairs, width, sums, width, false);
      for (int64_t row = 0; row < std::min(width, rows - group); ++row)
        for (int64_t output = 0; output < count; ++output)
          y[(group + row) * stride + first + output] = from_float<Bf16>(sums[output * width + row]);
    }
  }
}
#else
bool is_available() { return false; }

void multiply_rounded(int64_t, int64_t, int64_t, PairedOperand, const Bf16Pair*, int64_t, Bf16*, int64_t) {
  std::terminate();
}

void pair_gemm(int64_t, int64_t, int64_t, PairedOperand, const Bf16Pair*, int64_t, float*, int64_t, bool) {
  std::terminate();
}

void multiply(const Bf16*, const Bf16*, Bf16*, int64_t, int64_t, int64_t, int64_t) { std::terminate(); }
#endif

}  // namespace fsdp::kernels::raw::amx
