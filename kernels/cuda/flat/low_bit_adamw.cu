#include <cstring>

#include "kernels/cuda/flat/adamw.cuh"
#include "kernels/cuda/flat/step_launch.h"
#include "kernels/cuda/flat/vectors.cuh"
#include "kernels/cuda/teams.cuh"

namespace fsdp::kernels::cuda {
namespace {

constexpr int kCodes = 256;
constexpr int kOfThread = kCodedBlock / kWarp;  // elements of a block: two times four neighbours
constexpr int kFours = kOfThread / 4;
constexpr float kLeastScale = 1e-38F;
static_assert(kFours * 4 * kWarp == kCodedBlock);
static_assert(kBlockThreads == kCodes, "each thread brings one fraction");

// Of both moments, among a kernel's arguments: nothing lies on the device that somebody would have to keep.
struct Fractions {
  float first[kCodes];
  float second[kCodes];
};

// A code, ready for use by a block of threads: what its codes mean, and the borders between neighbours.
struct CodeTable {
  float fractions[kCodes];
  float borders[kCodes];  // the last one is not used

  // Every thread of the block; used after __syncthreads().
  __device__ void fill(const float (&from)[kCodes]) {
    const int i = static_cast<int>(threadIdx.x);
    fractions[i] = from[i];
    borders[i] = i + 1 < kCodes ? __fmul_rn(__fadd_rn(from[i], from[i + 1]), 0.5F) : 0;
  }

  // How many borders are below `fraction`; NaN: 255. By halves: 128, 64, ..., 1, together as many as there are borders.
  __device__ uint8_t code_of(float fraction) const {
    int below = 0;
#pragma unroll
    for (int half = kCodes / 2; half > 0; half /= 2) below += borders[below + half - 1] >= fraction ? 0 : half;
    return static_cast<uint8_t>(below);
  }
};

struct alignas(4) FourCodes {
  uint8_t codes[4];
};

// A thread's part of a block that begins at element `begin` of n: wide[4 * j + k] is element begin + 4 * (lane + 32 *
// j)
// + k. kWhole: all of the block are there, and what is loaded at once lies at multiples of its size.
template <bool kWhole>
struct Part {
  int64_t begin;
  int64_t n;

  __device__ int64_t place(int j) const { return begin + 4 * (static_cast<int64_t>(threadIdx.x) % kWarp + kWarp * j); }

  // Elements that the range lacks are 0.
  __device__ void load(const float* from, float (&wide)[kOfThread]) const {
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      const int64_t at = place(j);
      if constexpr (kWhole) {
        const float4 four = load4(from + at);
        wide[4 * j] = four.x;
        wide[4 * j + 1] = four.y;
        wide[4 * j + 2] = four.z;
        wide[4 * j + 3] = four.w;
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) wide[4 * j + k] = at + k < n ? from[at + k] : 0;
      }
    }
  }

  template <class T>
  __device__ void store(T* to, const float (&wide)[kOfThread]) const {
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      const int64_t at = place(j);
      if constexpr (kWhole) {
        store4(to + at, make_float4(wide[4 * j], wide[4 * j + 1], wide[4 * j + 2], wide[4 * j + 3]));
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (at + k < n) to[at + k] = from_float<T>(wide[4 * j + k]);
        }
      }
    }
  }

  __device__ void decode(const uint8_t* codes, float scale, const CodeTable& table, float (&wide)[kOfThread]) const {
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      const int64_t at = place(j);
      FourCodes four{};
      if constexpr (kWhole) {
        four = *reinterpret_cast<const FourCodes*>(codes + at);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (at + k < n) four.codes[k] = codes[at + k];
        }
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float number = __fmul_rn(table.fractions[four.codes[k]], scale);
        wide[4 * j + k] = kWhole || at + k < n ? number : 0;
      }
    }
  }

  // Returns the scale: the largest magnitude, NaN above all.
  __device__ float encode(const float (&wide)[kOfThread], const CodeTable& table, uint8_t* codes) const {
    unsigned most = 0;
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) most = max(most, __float_as_uint(wide[i]) & 0x7FFFFFFFU);
    const float scale = __uint_as_float(__reduce_max_sync(0xFFFFFFFFU, most));
    const float divisor = scale < kLeastScale ? kLeastScale : scale;  // NaN stays
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      const int64_t at = place(j);
      FourCodes four;
#pragma unroll
      for (int k = 0; k < 4; ++k) four.codes[k] = table.code_of(__fdiv_rn(wide[4 * j + k], divisor));
      if constexpr (kWhole) {
        *reinterpret_cast<FourCodes*>(codes + at) = four;
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (at + k < n) codes[at + k] = four.codes[k];
        }
      }
    }
    return scale;
  }
};

// 16 bytes an element (10 read, 6 written), the copy's, and 16 for a block's scales. A warp works on a block.
template <class Copy, bool kHasCopy>
struct LowBitAdamW {
  float* weight;
  const float* gradient;
  uint8_t* first_codes;
  float* first_scales;
  uint8_t* second_codes;
  float* second_scales;
  Copy* copy;
  const float* gradient_scale;
  AdamWFactors factors;
  int64_t n;
  bool is_aligned;

  // A warp's work on block `block`.
  template <bool kWhole>
  __device__ void update(int64_t block, const CodeTable& first, const CodeTable& second) const {
    const Part<kWhole> part{block * kCodedBlock, n};
    float w[kOfThread], g[kOfThread], m[kOfThread], v[kOfThread];
    part.load(weight, w);
    part.load(gradient, g);
    part.decode(first_codes, first_scales[block], first, m);
    part.decode(second_codes, second_scales[block], second, v);
    const float scale = gradient_scale_of(factors.gradient, gradient_scale);
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) adamw_update(w[i], g[i], m[i], v[i], factors, scale);
    part.store(weight, w);
    if constexpr (kHasCopy) part.store(copy, w);
    const float first_scale = part.encode(m, first, first_codes);
    const float second_scale = part.encode(v, second, second_codes);
    if (threadIdx.x % kWarp != 0) return;
    first_scales[block] = first_scale;
    second_scales[block] = second_scale;
  }
};

template <class Copy, bool kHasCopy>
__global__ void __launch_bounds__(kBlockThreads)
    run_low_bit_adamw(const __grid_constant__ LowBitAdamW<Copy, kHasCopy> step,
                      const __grid_constant__ Fractions fractions) {
  __shared__ CodeTable first, second;
  first.fill(fractions.first);
  second.fill(fractions.second);
  __syncthreads();
  constexpr int kWarps = kBlockThreads / kWarp;
  const int64_t num_blocks = (step.n + kCodedBlock - 1) / kCodedBlock;
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; block < num_blocks;
       block += static_cast<int64_t>(gridDim.x) * kWarps) {
    if (step.is_aligned && (block + 1) * kCodedBlock <= step.n) {
      step.template update<true>(block, first, second);
    } else {
      step.template update<false>(block, first, second);
    }
  }
}

// That four elements go with one instruction, at every multiple of a block.
template <class T>
bool takes_fours(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % (4 * sizeof(T)) == 0;
}

template <class Copy, bool kHasCopy>
cudaError_t launch(const LowBitAdamWArrays& a, const AdamWFactors& factors, cudaStream_t stream) {
  if (a.n == 0) return cudaSuccess;
  auto* copy = static_cast<Copy*>(a.copy);
  const bool is_aligned = takes_fours(a.weight) && takes_fours(a.gradient) && takes_fours(a.first.codes) &&
                          takes_fours(a.second.codes) && takes_fours(copy);
  const LowBitAdamW<Copy, kHasCopy> step{a.weight,        a.gradient, a.first.codes,    a.first.scales, a.second.codes,
                                         a.second.scales, copy,       a.gradient_scale, factors,        a.n,
                                         is_aligned};
  Fractions fractions;
  std::memcpy(fractions.first, a.first.fractions, sizeof(fractions.first));
  std::memcpy(fractions.second, a.second.fractions, sizeof(fractions.second));
  // So many that filling the tables costs little beside what a warp does.
  constexpr int64_t kMost = 4096;
  const int64_t coded_blocks = (a.n + kCodedBlock - 1) / kCodedBlock;
  run_low_bit_adamw<<<num_blocks(coded_blocks, kBlockThreads / kWarp, kMost), kBlockThreads, 0, stream>>>(step,
                                                                                                          fractions);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_low_bit_adamw(const LowBitAdamWArrays& arrays, const AdamWFactors& factors, cudaStream_t stream) {
  if (arrays.copy == nullptr) return launch<float, false>(arrays, factors, stream);
  return with_type(arrays.copy_dtype, [&](auto zero) { return launch<decltype(zero), true>(arrays, factors, stream); });
}

}  // namespace fsdp::kernels::cuda
