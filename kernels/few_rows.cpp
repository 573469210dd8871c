#include "kernels/few_rows.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/few_rows_amx.h"
#include "kernels/few_rows_pairs.h"
#include "kernels/many_rows.h"
#include "kernels/pair_gemm.h"
#include "kernels/parallel_for.h"
#include "kernels/simd.h"

namespace fsdp::kernels {
namespace {

using simd::Float;
using simd::kLanes;

constexpr int64_t kPairLanes = 2 * kLanes;
// Bytes of the weight below which a second thread costs more than it saves.
constexpr int64_t kTaskBytes = int64_t{1} << 15;
// Ahead of the loads, over the ends of pages and rows, which the processor's own prefetcher stops at.
constexpr int64_t kPrefetchBytes = 8192;

// 32 neighbours of a weight row as two vectors: halves for fp32; for bf16, which needs no more than a shift and a mask
// then, even and odd places.
FSDP_ALWAYS_INLINE void load_pair(const float* from, Float& first, Float& second) {
  first = simd::load(from);
  second = simd::load(from + kLanes);
}

FSDP_ALWAYS_INLINE void load_pair(const at::BFloat16* from, Float& first, Float& second) {
  simd::UInt bits;
  std::memcpy(&bits, from, sizeof(bits));
  first = reinterpret_cast<Float>(bits << 16);
  second = reinterpret_cast<Float>(bits & 0xFFFF0000u);
}

// x[row] . weight[output] for kRows rows and kOutputs outputs, in sums[row * kOutputs + output]. Every product has one
// sum of 16 lanes, added to in the order of k, so that its result does not depend on the tile.
template <int kRows, int kOutputs, class W>
FSDP_ALWAYS_INLINE void tile(const float* x, const W* weight, int64_t k, Float (&sums)[kRows * kOutputs]) {
  Float total[kRows][kOutputs] = {};  // in registers, which `sums` is not: its places are chosen by variables
  int64_t i = 0;
  for (; i + kPairLanes <= k; i += kPairLanes) {
    Float first[kOutputs], second[kOutputs];
#pragma GCC unroll 8
    for (int output = 0; output < kOutputs; ++output) {
      const W* from = weight + output * k + i;
      __builtin_prefetch(reinterpret_cast<const char*>(from) + kPrefetchBytes);
      load_pair(from, first[output], second[output]);
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const Float x_first = simd::load(x + row * k + i), x_second = simd::load(x + row * k + i + kLanes);
#pragma GCC unroll 8
      for (int output = 0; output < kOutputs; ++output) {
        total[row][output] += first[output] * x_first;
        total[row][output] += second[output] * x_second;
      }
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int output = 0; output < kOutputs; ++output) sums[row * kOutputs + output] = total[row][output];
  for (; i < k; i += kLanes) {  // what is left: a whole vector, a part of one, or both
    const int64_t count = std::min(kLanes, k - i);
    for (int row = 0; row < kRows; ++row)
      for (int output = 0; output < kOutputs; ++output)
        sums[row * kOutputs + output] +=
            simd::load_first(weight + output * k + i, count) * simd::load_first(x + row * k + i, count);
  }
}

// The products of a tile to y[row * stride + output].
template <int kRows, int kOutputs, class W, class Y>
FSDP_ALWAYS_INLINE void tile_to(const float* x, const W* weight, Y* y, int64_t k, int64_t stride) {
  Float sums[kRows * kOutputs];
  tile<kRows, kOutputs>(x, weight, k, sums);
  alignas(64) Y results[kRows * kOutputs + kLanes];  // eight at a time, and what follows them
  for (int i = 0; i < kRows * kOutputs; i += 8) {
    Float eight[8];
    for (int j = 0; j < 8; ++j) eight[j] = sums[i + j];
    simd::store(results + i, simd::sums(eight));
  }
  for (int row = 0; row < kRows; ++row)
    for (int output = 0; output < kOutputs; ++output) y[row * stride + output] = results[row * kOutputs + output];
}

template <class W, class Y>
FSDP_ALWAYS_INLINE void outputs_of(const float* x, const W* weight, Y* y, int64_t rows, int64_t k, int64_t stride,
                                   int64_t outputs) {
  int64_t output = 0;
  for (; output + 8 <= outputs; output += 8, weight += 8 * k, y += 8) {  // stays in the cache for the rows
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4)
      for (int i = 0; i < 8; i += 4) tile_to<4, 4>(x + row * k, weight + i * k, y + row * stride + i, k, stride);
    for (; row < rows; ++row) tile_to<1, 8>(x + row * k, weight, y + row * stride, k, stride);
  }
  for (; output < outputs; ++output, weight += k, ++y) {
    for (int64_t row = 0; row < rows; ++row) {
      Float sum[1];
      tile<1, 1>(x + row * k, weight, k, sum);
      y[row * stride] = static_cast<Y>(simd::sum(sum[0]));
    }
  }
}

FSDP_SIMD_CLONES void outputs_part(const float* x, const float* weight, float* y, int64_t rows, int64_t k,
                                   int64_t stride, int64_t outputs) {
  outputs_of(x, weight, y, rows, k, stride, outputs);
}

FSDP_SIMD_CLONES void outputs_part(const float* x, const at::BFloat16* weight, float* y, int64_t rows, int64_t k,
                                   int64_t stride, int64_t outputs) {
  outputs_of(x, weight, y, rows, k, stride, outputs);
}

FSDP_SIMD_CLONES void outputs_part(const float* x, const at::BFloat16* weight, at::BFloat16* y, int64_t rows, int64_t k,
                                   int64_t stride, int64_t outputs) {
  outputs_of(x, weight, y, rows, k, stride, outputs);
}

// Rows as load_pair() reads weights in bf16: of every 32 numbers the even places, then the odd ones.
FSDP_ALWAYS_INLINE void spread(const float* from, float* to) {
  const Float low = simd::load(from), high = simd::load(from + kLanes);
  simd::store(to, __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30));
  simd::store(to + kLanes,
              __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31));
}

FSDP_ALWAYS_INLINE void spread(const at::BFloat16* from, float* to) {
  Float even, odd;
  load_pair(from, even, odd);
  simd::store(to, even);
  simd::store(to + kLanes, odd);
}

template <class T>
FSDP_ALWAYS_INLINE void spread_of(const T* from, float* to, int64_t rows, int64_t k) {
  for (int64_t row = 0; row < rows; ++row, from += k, to += k) {
    int64_t i = 0;
    for (; i + kPairLanes <= k; i += kPairLanes) spread(from + i, to + i);
    for (; i < k; ++i) to[i] = static_cast<float>(from[i]);
  }
}

FSDP_SIMD_CLONES void spread_rows(const float* from, float* to, int64_t rows, int64_t k) {
  spread_of(from, to, rows, k);
}

FSDP_SIMD_CLONES void spread_rows(const at::BFloat16* from, float* to, int64_t rows, int64_t k) {
  spread_of(from, to, rows, k);
}

template <class W, class Y>
void multiply(const at::Tensor& x, const at::Tensor& weight, at::Tensor& y) {
  const int64_t outputs = weight.size(0), k = weight.size(1), rows = x.numel() / k;
  at::Tensor wide = x;
  if (std::is_same_v<W, at::BFloat16>) {
    wide = at::empty({rows, k}, x.options().dtype(at::kFloat).requires_grad(false));
    spread_rows(x.const_data_ptr<Y>(), wide.mutable_data_ptr<float>(), rows, k);
  }
  const float* from = wide.const_data_ptr<float>();
  const W* w = weight.const_data_ptr<W>();
  Y* to = y.mutable_data_ptr<Y>();
  const int64_t grain = std::max<int64_t>(8, kTaskBytes / (k * static_cast<int64_t>(sizeof(W))));
  parallel_for(0, outputs, grain, [&](int64_t begin, int64_t end) {
    outputs_part(from, w + begin * k, to + begin, rows, k, outputs, end - begin);
  });
}

// The same for bf16, in pairs.
void multiply_pairs(const at::Tensor& x, const at::Tensor& weight, at::Tensor& y) {
  const int64_t outputs = weight.size(0), k = weight.size(1), rows = x.numel() / k;
  const auto* from = x.const_data_ptr<at::BFloat16>();
  const auto* w = weight.const_data_ptr<at::BFloat16>();
  auto* to = y.mutable_data_ptr<at::BFloat16>();
  parallel_for(0, outputs, std::max<int64_t>(8, kTaskBytes / (2 * k)), [&](int64_t begin, int64_t end) {
    few_rows_of_pairs(from, w + begin * k, to + begin, rows, k, outputs, end - begin);
  });
}

// The same for bf16, in tiles.
void multiply_tiles(const at::Tensor& x, const at::Tensor& weight, at::Tensor& y) {
  const int64_t outputs = weight.size(0), k = weight.size(1), rows = x.numel() / k;
  const at::Tensor packed = at::empty({amx::packed_size(rows, k)}, x.options().requires_grad(false));
  amx::pack(x.const_data_ptr<at::BFloat16>(), rows, k, packed.mutable_data_ptr<at::BFloat16>());
  const auto* from = packed.const_data_ptr<at::BFloat16>();
  const auto* w = weight.const_data_ptr<at::BFloat16>();
  auto* to = y.mutable_data_ptr<at::BFloat16>();
  const int64_t tasks = (outputs + amx::kBlock - 1) / amx::kBlock;
  const int64_t grain = std::max<int64_t>(1, kTaskBytes / (2 * k * amx::kBlock));
  parallel_for(0, tasks, grain, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * amx::kBlock, last = std::min(end * amx::kBlock, outputs);
    amx::multiply(from, w + first * k, to + first, rows, k, outputs, last - first);
  });
}

}  // namespace

bool fits_few_rows(const at::Tensor& x, const at::Tensor& weight) {
  if (!fits_many_rows(x, weight)) return false;
  const bool is_mixed = x.scalar_type() != weight.scalar_type();
  return x.numel() <= (is_mixed ? kFewRowsOfMixed : kFewRows) * x.size(-1);
}

at::Tensor few_rows_product(const at::Tensor& x, const at::Tensor& weight) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  at::Tensor y = at::empty(shape, x.options().requires_grad(false));
  if (x.scalar_type() == at::kBFloat16 && amx::fits(weight.size(0), weight.size(1)) && amx::is_available())
    multiply_tiles(x, weight, y);
  else if (x.scalar_type() == at::kBFloat16 && has_pair_gemm())
    multiply_pairs(x, weight, y);
  else if (x.scalar_type() == at::kBFloat16)
    multiply<at::BFloat16, at::BFloat16>(x, weight, y);
  else if (weight.scalar_type() == at::kBFloat16)
    multiply<at::BFloat16, float>(x, weight, y);
  else
    multiply<float, float>(x, weight, y);
  return y;
}

}  // namespace fsdp::kernels
