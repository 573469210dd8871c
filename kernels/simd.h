// Sixteen-lane vectors for the CPU kernels, written with the compiler's vector extension so that one source serves
// every instruction set: a function marked FSDP_SIMD_CLONES is compiled for AVX-512, AVX2 and the baseline, and the
// loader picks. Everything here is always_inline, so it takes the instruction set of the function that uses it; a
// lambda does not, which is why loops stand in plain functions. Sums have the same order on every instruction set.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Sanitizers are not up yet when the loader picks clones.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FSDP_SIMD_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FSDP_SIMD_CLONES
#endif
#define FSDP_ALWAYS_INLINE inline __attribute__((always_inline))

namespace fsdp::kernels::simd {

inline constexpr int64_t kLanes = 16;
typedef float Float __attribute__((vector_size(64)));
typedef int32_t Int __attribute__((vector_size(64)));
typedef uint32_t UInt __attribute__((vector_size(64)));
typedef uint16_t UShort __attribute__((vector_size(32)));

FSDP_ALWAYS_INLINE Float broadcast(float value) { return Float{} + value; }

FSDP_ALWAYS_INLINE Float load(const float* from) {
  Float value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

FSDP_ALWAYS_INLINE Float load(const c10::BFloat16* from) {
  UShort bits;
  std::memcpy(&bits, from, sizeof(bits));
  return reinterpret_cast<Float>(__builtin_convertvector(bits, UInt) << 16);
}

// The upper halves of the lanes after rounding to the nearest bf16, ties to even; NaN stays NaN.
FSDP_ALWAYS_INLINE UInt round_to_bf16_bits(Float value) {
  const UInt bits = reinterpret_cast<UInt>(value);
  const UInt rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
  const UInt is_nan = reinterpret_cast<UInt>(value != value);
  return ((rounded & ~is_nan) | (0x7FC00000u & is_nan)) & 0xFFFF0000u;
}

FSDP_ALWAYS_INLINE void store(float* to, Float value) { std::memcpy(to, &value, sizeof(value)); }

FSDP_ALWAYS_INLINE void store(c10::BFloat16* to, Float value) {
  const UShort bits = __builtin_convertvector(round_to_bf16_bits(value) >> 16, UShort);
  std::memcpy(to, &bits, sizeof(bits));
}

inline constexpr int64_t kLineBytes = 64;

inline int64_t bytes_before_line(const void* address) {
  return static_cast<int64_t>(-reinterpret_cast<uintptr_t>(address) & (kLineBytes - 1));
}

// `to` at a multiple of 16 bytes. In quarters, which every x86-64 has; the processor joins those of a line.
FSDP_ALWAYS_INLINE void store_past_cache(float* to, Float value) {
#if defined(__x86_64__)
  __m128 quarters[4];
  std::memcpy(quarters, &value, sizeof(value));
  for (int i = 0; i < 4; ++i) _mm_stream_ps(to + 4 * i, quarters[i]);
#else
  store(to, value);
#endif
}

// Stores past the cache are seen by others no later than those that follow.
inline void order_stores_past_cache() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// The first `count` < 16 lanes; the others are `fill`.
template <class T>
FSDP_ALWAYS_INLINE Float load_first(const T* from, int64_t count, float fill = 0) {
  alignas(64) float lanes[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) lanes[i] = i < count ? static_cast<float>(from[i]) : fill;
  return load(lanes);
}

template <class T>
FSDP_ALWAYS_INLINE void store_first(T* to, Float value, int64_t count) {
  alignas(64) T lanes[kLanes];
  store(lanes, value);
  for (int64_t i = 0; i < count; ++i) to[i] = lanes[i];
}

// What a tensor of type T would hold, as fp32: Hugging Face models round after every operator.
template <class T>
FSDP_ALWAYS_INLINE Float round_to(Float value) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) return reinterpret_cast<Float>(round_to_bf16_bits(value));
  return value;
}

FSDP_ALWAYS_INLINE float sum(Float value) {
  for (int64_t step = kLanes / 2; step > 0; step /= 2)
    for (int64_t i = 0; i < step; ++i) value[i] += value[i + step];
  return value[0];
}

// From lanes of a and b, groups of 2 * kStep: each group's lower half added to its upper half. a's sums come first.
template <int kStep>
FSDP_ALWAYS_INLINE Float fold(Float a, Float b) {
  if constexpr (kStep == 8)
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  else if constexpr (kStep == 4)
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  else if constexpr (kStep == 2)
    return __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
           __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
  else
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
           __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

// The first eight lanes are the sums of the eight, each in the order of sum().
FSDP_ALWAYS_INLINE Float sums(const Float (&v)[8]) {
  const Float low = fold<4>(fold<8>(v[0], v[1]), fold<8>(v[2], v[3]));
  const Float high = fold<4>(fold<8>(v[4], v[5]), fold<8>(v[6], v[7]));
  const Float pairs = fold<2>(low, high);
  return fold<1>(pairs, pairs);
}

// Of two neighbouring squares of kStep lanes each in rows a and b, those off the diagonal change places.
template <int kStep>
FSDP_ALWAYS_INLINE void exchange(Float& a, Float& b) {
  const Float first = a, second = b;
  if constexpr (kStep == 8) {
    a = __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    b = __builtin_shufflevector(first, second, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  } else if constexpr (kStep == 4) {
    a = __builtin_shufflevector(first, second, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
    b = __builtin_shufflevector(first, second, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  } else if constexpr (kStep == 2) {
    a = __builtin_shufflevector(first, second, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    b = __builtin_shufflevector(first, second, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  } else {
    a = __builtin_shufflevector(first, second, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    b = __builtin_shufflevector(first, second, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  }
}

template <int kStep>
FSDP_ALWAYS_INLINE void exchange_rows(Float (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (int row = 0; row < kLanes; ++row)
    if ((row & kStep) == 0) exchange<kStep>(rows[row], rows[row + kStep]);
}

// Sixteen rows become sixteen columns.
FSDP_ALWAYS_INLINE void transpose(Float (&rows)[kLanes]) {
  exchange_rows<8>(rows);
  exchange_rows<4>(rows);
  exchange_rows<2>(rows);
  exchange_rows<1>(rows);
}

FSDP_ALWAYS_INLINE Float max(Float a, Float b) { return a > b ? a : b; }

FSDP_ALWAYS_INLINE Float min(Float a, Float b) { return a < b ? a : b; }

FSDP_ALWAYS_INLINE float max(Float value) {
  float best = value[0];
  for (int64_t i = 1; i < kLanes; ++i) best = value[i] > best ? value[i] : best;
  return best;
}

// e^x within 2 ulp for -87 < x < 88; saturates outside, NaN stays NaN. After Cephes expf.
FSDP_ALWAYS_INLINE Float exp(Float x) {
  const Float clamped = max(min(x, broadcast(88.0f)), broadcast(-87.0f));
  constexpr float kRoundMagic = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const Float shifted = clamped * 1.44269504088896341f + kRoundMagic;
  const Float n = shifted - kRoundMagic;
  const Float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  Float p = broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Int exponent = (reinterpret_cast<Int>(shifted) - 0x4B400000) << 23;
  const Float result = reinterpret_cast<Float>(reinterpret_cast<Int>(p) + exponent);
  return x != x ? x : result;
}

}  // namespace fsdp::kernels::simd
