#include "kernels/raw/products/few_rows_amx.h"

#include <algorithm>
#include <cstring>

#include "kernels/raw/cpu_isa.h"

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

constexpr int kWeight = 4, kOtherWeight = 6, kRows = 5;

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};
};

bool has_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return (d >> 22 & 1) != 0 && (d >> 24 & 1) != 0;  // AMX-BF16, AMX-TILE
}

// Linux hands tile registers out on request.
bool request_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

TileConfig config_of(int64_t width) {
  TileConfig config;
  for (const int tile : {0, 1, 2, 3, kRows}) {
    config.rows[tile] = 16;
    config.bytes_per_row[tile] = static_cast<uint16_t>(4 * width);
  }
  for (const int tile : {kWeight, kOtherWeight}) {
    config.rows[tile] = 16;
    config.bytes_per_row[tile] = 64;
  }
  return config;
}

// Sums of up to 64 outputs for one group of rows, [output][row].
__attribute__((target("amx-tile,amx-bf16"))) void sum_block(const Bf16* packed, const Bf16* weight, int64_t width,
                                                            int64_t k, int64_t tiles, float* sums) {
  const int64_t row_bytes = 4 * width, weight_bytes = 2 * k;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < k; i += 32) {
    _tile_loadd(5, packed + i * width, row_bytes);
    _tile_loadd(4, weight + i, weight_bytes);
    _tile_dpbf16ps(0, 4, 5);
    if (tiles > 1) {
      _tile_loadd(6, weight + 16 * k + i, weight_bytes);
      _tile_dpbf16ps(1, 6, 5);
    }
    if (tiles > 2) {
      _tile_loadd(4, weight + 32 * k + i, weight_bytes);
      _tile_dpbf16ps(2, 4, 5);
    }
    if (tiles > 3) {
      _tile_loadd(6, weight + 48 * k + i, weight_bytes);
      _tile_dpbf16ps(3, 6, 5);
    }
  }
  _tile_stored(0, sums, row_bytes);
  _tile_stored(1, sums + 16 * width, row_bytes);
  _tile_stored(2, sums + 32 * width, row_bytes);
  _tile_stored(3, sums + 48 * width, row_bytes);
}

}  // namespace

bool is_available() {
  static const bool available = has_instructions() && request_tiles();
  return available && cpu_isa() == CpuIsa::kAvx512;
}

__attribute__((target("amx-tile"))) void multiply(const Bf16* packed, const Bf16* weight, Bf16* y, int64_t rows,
                                                  int64_t k, int64_t stride, int64_t outputs) {
  const int64_t width = std::min(rows, kGroup);
  TileConfig before;
  _tile_storeconfig(&before);
  const TileConfig config = config_of(width);
  _tile_loadconfig(&config);
  alignas(64) float sums[kBlock * kGroup];
  for (int64_t first = 0; first < outputs; first += kBlock) {  // the block stays in the cache for all groups
    const int64_t count = std::min(kBlock, outputs - first);
    for (int64_t group = 0; group < rows; group += kGroup) {
      sum_block(packed + group * k, weight + first * k, width, k, count / 16, sums);
      for (int64_t row = 0; row < std::min(width, rows - group); ++row)
        for (int64_t output = 0; output < count; ++output)
          y[(group + row) * stride + first + output] = from_float<Bf16>(sums[output * width + row]);
    }
  }
  _tile_loadconfig(&before);
}
#else
bool is_available() { return false; }

void multiply(const Bf16*, const Bf16*, Bf16*, int64_t, int64_t, int64_t, int64_t) {}
#endif

}  // namespace fsdp::kernels::raw::amx
