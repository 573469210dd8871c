// Sixteen lanes of fp32 for the kernels of this folder, on Google Highway: `Float` is one register of AVX-512, two of
// AVX2 and four of SSE4 or NEON, so that a kernel is written once and its sums have the same order on every instruction
// set. Tiles of matrix products, which must know how many registers there are, use `Native` and the numbers below it.
//
// A kernel's source includes this between <hwy/foreach_target.h> and its own code, which is compiled once for each
// instruction set in namespace HWY_NAMESPACE; all here but copy_first() is inlined into it. Multiply-adds are written
// as such: these sources are compiled without contraction, so that what is fused does not depend on the compiler.
#if defined(FSDP_KERNELS_RAW_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FSDP_KERNELS_RAW_SIMD_INL_H_
#undef FSDP_KERNELS_RAW_SIMD_INL_H_
#else
#define FSDP_KERNELS_RAW_SIMD_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/raw/bf16.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE::simd {

namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::CappedTag<float, kLanes>;
using Native = hn::Vec<Tag>;
constexpr auto kNativeLanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
// Architectural vector registers.
constexpr int kRegisters = (HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64) ? 32 : 16;

// The compiler does not load it again from where it came from.
HWY_INLINE void keep_in_register(Native& value) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  asm("" : "+v"(value.raw));
#else
  (void)value;
#endif
}

// Constructors are written out: those that the compiler makes are not compiled for the instruction set.
struct One {
  HWY_INLINE One() {}
  HWY_INLINE One(Native value) : v(value) {}
  Native v;
};

template <class Half>
struct Two {
  HWY_INLINE Two() {}
  HWY_INLINE Two(const Half& first, const Half& second) : low(first), high(second) {}
  Half low, high;
};

template <int kCount>
struct Lanes {
  using Type = Two<typename Lanes<kCount / 2>::Type>;
};
template <>
struct Lanes<kNativeLanes> {
  using Type = One;
};
using Float = Lanes<kLanes>::Type;

#define FSDP_LANEWISE_1(name, operation)                  \
  HWY_INLINE One name(One a) { return {operation(a.v)}; } \
  template <class Half>                                   \
  HWY_INLINE Two<Half> name(const Two<Half>& a) {         \
    return {name(a.low), name(a.high)};                   \
  }
#define FSDP_LANEWISE_2(name, operation)                              \
  HWY_INLINE One name(One a, One b) { return {operation(a.v, b.v)}; } \
  template <class Half>                                               \
  HWY_INLINE Two<Half> name(const Two<Half>& a, const Two<Half>& b) { \
    return {name(a.low, b.low), name(a.high, b.high)};                \
  }
#define FSDP_LANEWISE_3(name, operation)                                                  \
  HWY_INLINE One name(One a, One b, One c) { return {operation(a.v, b.v, c.v)}; }         \
  template <class Half>                                                                   \
  HWY_INLINE Two<Half> name(const Two<Half>& a, const Two<Half>& b, const Two<Half>& c) { \
    return {name(a.low, b.low, c.low), name(a.high, b.high, c.high)};                     \
  }

using TagBits = hn::RebindToUnsigned<Tag>;
using TagInt = hn::RebindToSigned<Tag>;
using Tag16 = hn::Rebind<uint16_t, Tag>;

// What a tensor of bf16 would hold, in the upper halves of the lanes: rounded to the nearest, ties to even. The lower
// halves are left over. For what is computed from bf16 numbers: NaNs are then theirs or the processor's own, whose
// lower halves are zero, and stay NaN. Rounding makes zero of others.
HWY_INLINE Native round_upper_halves(Native value) {
  const TagBits bits_tag;
  const auto bits = hn::BitCast(bits_tag, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(bits_tag, 1));
  return hn::BitCast(Tag(), hn::Add(bits, hn::Add(odd, hn::Set(bits_tag, 0x7FFF))));
}

// The same for any numbers: NaN stays NaN.
HWY_INLINE Native round_any_upper_halves(Native value) {
  const auto nan = hn::BitCast(Tag(), hn::Set(TagBits(), 0x7FC00000u));
  return hn::IfThenElse(hn::Eq(value, value), round_upper_halves(value), nan);
}

HWY_INLINE Native clear_lower_halves(Native value) {
  const TagBits bits_tag;
  return hn::BitCast(Tag(), hn::And(hn::BitCast(bits_tag, value), hn::Set(bits_tag, 0xFFFF0000u)));
}

HWY_INLINE Native round_native_result(Native value) { return clear_lower_halves(round_upper_halves(value)); }
HWY_INLINE Native round_native_to_bf16(Native value) { return clear_lower_halves(round_any_upper_halves(value)); }

// Of lanes whose lower halves are zero: a's upper half under b's.
HWY_INLINE Native join_native_upper_halves(Native a, Native b) {
  const TagBits bits_tag;
  return hn::BitCast(Tag(), hn::Or(hn::ShiftRight<16>(hn::BitCast(bits_tag, a)), hn::BitCast(bits_tag, b)));
}

// e^x within 2 ulp for -87 < x < 88; saturates outside, NaN stays NaN. After Cephes expf.
HWY_INLINE Native exp_native(Native x) {
  const Tag tag;
  const auto clamped = hn::Max(hn::Min(x, hn::Set(tag, 88.0f)), hn::Set(tag, -87.0f));
  const auto magic = hn::Set(tag, 12582912.0f);  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const auto shifted = hn::MulAdd(clamped, hn::Set(tag, 1.44269504088896341f), magic);
  const auto n = hn::Sub(shifted, magic);
  const auto r = hn::MulAdd(n, hn::Set(tag, 2.12194440e-4f), hn::NegMulAdd(n, hn::Set(tag, 0.693359375f), clamped));
  auto p = hn::Set(tag, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(tag, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(tag, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(tag, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(tag, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(tag, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(hn::Mul(p, r), r, r), hn::Set(tag, 1.0f));
  const TagInt int_tag;
  const auto exponent = hn::ShiftLeft<23>(hn::Sub(hn::BitCast(int_tag, shifted), hn::Set(int_tag, 0x4B400000)));
  const auto result = hn::BitCast(tag, hn::Add(hn::BitCast(int_tag, p), exponent));
  return hn::IfThenElse(hn::Eq(x, x), result, x);
}

// a where it is above b, else b: so NaN in a never wins.
HWY_INLINE Native max_native(Native a, Native b) { return hn::IfThenElse(hn::Gt(a, b), a, b); }

// Lanes of `then` where x > 0, else 0.
HWY_INLINE Native where_above_lowest_native(Native x, Native then) {
  const Tag tag;
  const auto lowest = hn::BitCast(tag, hn::Set(TagBits(), 0xFF800000u));
  return hn::IfThenElseZero(hn::Gt(x, lowest), then);
}

FSDP_LANEWISE_2(operator+, hn::Add)
FSDP_LANEWISE_2(operator-, hn::Sub)
FSDP_LANEWISE_2(operator*, hn::Mul)
FSDP_LANEWISE_2(operator/, hn::Div)
FSDP_LANEWISE_2(max, max_native)
FSDP_LANEWISE_2(where_above_lowest, where_above_lowest_native)
FSDP_LANEWISE_2(join_upper_halves, join_native_upper_halves)
FSDP_LANEWISE_3(mul_add, hn::MulAdd)         // a * b + c
FSDP_LANEWISE_3(neg_mul_add, hn::NegMulAdd)  // c - a * b
FSDP_LANEWISE_1(sqrt, hn::Sqrt)
FSDP_LANEWISE_1(exp, exp_native)
FSDP_LANEWISE_1(round_to_bf16, round_native_to_bf16)
FSDP_LANEWISE_1(rounded_result, round_native_result)
FSDP_LANEWISE_1(with_rounded_upper_halves, round_upper_halves)
FSDP_LANEWISE_1(with_any_rounded_upper_halves, round_any_upper_halves)

#undef FSDP_LANEWISE_1
#undef FSDP_LANEWISE_2
#undef FSDP_LANEWISE_3

HWY_INLINE void fill(One& to, float value) { to.v = hn::Set(Tag(), value); }
template <class Half>
HWY_INLINE void fill(Two<Half>& to, float value) {
  fill(to.low, value);
  fill(to.high, value);
}

HWY_INLINE Float broadcast(float value) {
  Float result;
  fill(result, value);
  return result;
}

HWY_INLINE Float zero() { return broadcast(0.0f); }

HWY_INLINE Float operator*(const Float& a, float b) { return a * broadcast(b); }
HWY_INLINE Float operator-(const Float& a, float b) { return a - broadcast(b); }

// Places of part 0, 1, ... of a Float lie kNativeLanes apart.
template <class Part>
struct Width;
template <>
struct Width<One> {
  static constexpr int kCount = kNativeLanes;
};
template <class Half>
struct Width<Two<Half>> {
  static constexpr int kCount = 2 * Width<Half>::kCount;
};

HWY_INLINE void load_to(One& to, const float* from) { to.v = hn::LoadU(Tag(), from); }
HWY_INLINE void load_to(One& to, const Bf16* from) {
  const auto bits = hn::LoadU(Tag16(), reinterpret_cast<const uint16_t*>(from));
  to.v = hn::BitCast(Tag(), hn::ShiftLeft<16>(hn::PromoteTo(TagBits(), bits)));
}
template <class Half, class T>
HWY_INLINE void load_to(Two<Half>& to, const T* from) {
  load_to(to.low, from);
  load_to(to.high, from + Width<Half>::kCount);
}

// Two registers of numbers from one of bf16 and back, which takes fewer instructions than one at a time. Those that mix
// two registers do so in each 128 bits of them: where there are 256, the second and third of four parts change places
// before that, or after it. AVX-512 has no pair of registers in a Float, and instructions of its own for halves.
#if HWY_MAX_BYTES == 16 || HWY_MAX_BYTES == 32
using TagPair = hn::Repartition<uint16_t, Tag>;
HWY_INLINE hn::Vec<TagPair> swap_middle_quarters(hn::Vec<TagPair> bits) {
#if HWY_MAX_BYTES == 32
  alignas(32) static constexpr int32_t kOrder[8] = {0, 1, 4, 5, 2, 3, 6, 7};
  return hn::BitCast(TagPair(),
                     hn::TableLookupLanes(hn::BitCast(TagInt(), bits), hn::SetTableIndices(TagInt(), kOrder)));
#else
  return bits;
#endif
}

HWY_INLINE void load_to(Two<One>& to, const Bf16* from) {
  const TagPair pair;
  const auto bits = swap_middle_quarters(hn::LoadU(pair, reinterpret_cast<const uint16_t*>(from)));
  to.low.v = hn::BitCast(Tag(), hn::InterleaveLower(pair, hn::Zero(pair), bits));
  to.high.v = hn::BitCast(Tag(), hn::InterleaveUpper(pair, hn::Zero(pair), bits));
}
#endif

template <class T>
HWY_INLINE Float load(const T* from) {
  Float result;
  load_to(result, from);
  return result;
}

HWY_INLINE void store(float* to, One value) { hn::StoreU(value.v, Tag(), to); }
// The upper halves of lanes.
HWY_INLINE void store_upper_halves(Bf16* to, One value) {
  const auto bits = hn::ShiftRight<16>(hn::BitCast(TagInt(), value.v));
  // As signed numbers, which fit: saturation changes none of them.
  const hn::Rebind<int16_t, Tag> narrow;
  hn::StoreU(hn::DemoteTo(narrow, bits), narrow, reinterpret_cast<int16_t*>(to));
}
#if HWY_MAX_BYTES == 16 || HWY_MAX_BYTES == 32
HWY_INLINE void store_upper_halves(Bf16* to, const Two<One>& value) {
  const auto low = hn::ShiftRight<16>(hn::BitCast(TagInt(), value.low.v));
  const auto high = hn::ShiftRight<16>(hn::BitCast(TagInt(), value.high.v));
  const hn::Repartition<int16_t, Tag> narrow;
  const auto bits = hn::BitCast(TagPair(), hn::ReorderDemote2To(narrow, low, high));
  hn::StoreU(swap_middle_quarters(bits), TagPair(), reinterpret_cast<uint16_t*>(to));
}
#endif
template <class Half>
HWY_INLINE void store_upper_halves(Bf16* to, const Two<Half>& value) {
  store_upper_halves(to, value.low);
  store_upper_halves(to + Width<Half>::kCount, value.high);
}

template <class Half>
HWY_INLINE void store(float* to, const Two<Half>& value) {
  store(to, value.low);
  store(to + Width<Half>::kCount, value.high);
}
template <class Numbers>
HWY_INLINE void store(Bf16* to, const Numbers& value) {
  store_upper_halves(to, with_any_rounded_upper_halves(value));
}

// Of what a kernel computed from numbers of type T, see round_upper_halves().
template <class T>
HWY_INLINE void store_result(T* to, const Float& value) {
  if constexpr (std::is_same_v<T, Bf16>)
    store_upper_halves(to, with_rounded_upper_halves(value));
  else
    store(to, value);
}

// `to` at a multiple of 64 bytes: past the cache where the processor has such stores.
HWY_INLINE void store_past_cache(float* to, One value) { hn::Stream(value.v, Tag(), to); }
template <class Half>
HWY_INLINE void store_past_cache(float* to, const Two<Half>& value) {
  store_past_cache(to, value.low);
  store_past_cache(to + Width<Half>::kCount, value.high);
}

// Not inlined: it is called where a row ends, and would be half of the kernels' code.
template <class T>
HWY_NOINLINE void copy_first(const T* from, int64_t count, float fill, float* lanes) {
  for (int64_t i = 0; i < kLanes; ++i) lanes[i] = i < count ? to_float(from[i]) : fill;
}

// The first `count` < 16 lanes; the others are `fill`.
template <class T>
HWY_INLINE Float load_first(const T* from, int64_t count, float fill = 0) {
  alignas(64) float lanes[kLanes];
  copy_first(from, count, fill, lanes);
  return load(lanes);
}

template <class T>
HWY_INLINE void store_first(T* to, const Float& value, int64_t count) {
  alignas(64) T lanes[kLanes];
  store(lanes, value);
  std::memcpy(to, lanes, static_cast<size_t>(count) * sizeof(T));
}

// What a tensor of type T would hold, as fp32: Hugging Face models round after every operator. Of what was computed
// from numbers of that type, see round_upper_halves().
template <class T>
HWY_INLINE Float round_to(const Float& value) {
  if constexpr (std::is_same_v<T, Bf16>) return rounded_result(value);
  return value;
}

// Halves are added until one lane is left: the same order whatever the width of a register.
template <int kCount>
HWY_INLINE float sum_lanes(Native value) {
  alignas(64) float lanes[kNativeLanes];
  hn::Store(value, Tag(), lanes);
  for (int step = kCount / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  return lanes[0];
}

HWY_INLINE float sum(One value) { return sum_lanes<kNativeLanes>(value.v); }
template <class Half>
HWY_INLINE float sum(const Two<Half>& value) {
  return sum(value.low + value.high);
}

// The highest lane; NaN never wins unless it is the first lane.
HWY_INLINE float max(One value) {
  alignas(64) float lanes[kNativeLanes];
  hn::Store(value.v, Tag(), lanes);
  float best = lanes[0];
  for (int i = 1; i < kNativeLanes; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}
template <class Half>
HWY_INLINE float max(const Two<Half>& value) {
  return max(max(value.high, value.low));
}

}  // namespace fsdp::kernels::raw::HWY_NAMESPACE::simd
HWY_AFTER_NAMESPACE();

#endif
