#include "kernels/raw/flat/weight_digits.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/flat/weight_digits.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>

#include "kernels/raw/flat/registers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using registers::Tag;
using registers::TagBits;
using registers::TagInt;
using Bits = hn::Vec<TagBits>;

void join_digits_of(const Bf16* rounded, const int8_t* digits, float* weight, int64_t count) {
  const auto* halves = reinterpret_cast<const uint16_t*>(rounded);
  const TagInt int_tag;
  registers::for_each(count, [&](int64_t at, size_t lanes) HWY_ATTR {
    const auto upper = hn::ShiftLeft<16>(hn::PromoteTo(TagBits(), registers::load(halves + at, lanes)));
    const auto byte = hn::PromoteTo(int_tag, registers::load(digits + at, lanes));
    const auto is_zero = hn::Eq(hn::ShiftLeft<1>(hn::BitCast(int_tag, upper)), hn::Zero(int_tag));
    const auto legal = hn::IfThenElse(is_zero, hn::Max(byte, hn::Zero(int_tag)), byte);
    const auto bits = hn::Add(hn::BitCast(int_tag, upper), hn::ShiftLeft<8>(legal));
    registers::store(hn::BitCast(Tag(), bits), weight + at, lanes);
  });
}

// Bits of an fp32 whose last eight do not count any more.
HWY_INLINE void store_split(Bits bits, Bf16* rounded, int8_t* digits, size_t lanes) {
  const TagInt int_tag;
  const auto wide = hn::BitCast(int_tag, hn::ShiftRight<8>(bits));
  const auto half = hn::ShiftRight<8>(hn::Add(wide, hn::Set(int_tag, 0x80)));
  const auto digit = hn::Sub(wide, hn::ShiftLeft<8>(half));
  registers::store(hn::DemoteTo(registers::TagOf<uint16_t>(), half), reinterpret_cast<uint16_t*>(rounded), lanes);
  registers::store(hn::DemoteTo(registers::TagOf<int8_t>(), digit), digits, lanes);
}

// NaN has none that a carry could reach.
HWY_INLINE Bits load_bits(const float* weight, size_t lanes) {
  const auto value = registers::load(weight, lanes);
  return hn::IfThenElse(hn::RebindMask(TagBits(), hn::Eq(value, value)), hn::BitCast(TagBits(), value),
                        hn::Set(TagBits(), 0x7FC00000u));
}

void split_digits_of(const float* weight, Bf16* rounded, int8_t* digits, int64_t count) {
  const TagBits bits_tag;
  registers::for_each(count, [&](int64_t at, size_t lanes) HWY_ATTR {
    const Bits bits = load_bits(weight + at, lanes);
    const Bits odd = hn::And(hn::ShiftRight<8>(bits), hn::Set(bits_tag, 1));
    store_split(hn::Add(bits, hn::Add(odd, hn::Set(bits_tag, 0x7F))), rounded + at, digits + at, lanes);
  });
}

constexpr int64_t kDrawn = 64;  // elements that draw from 16 words, a byte each

// The last mixing of MurmurHash3 of a number for each word.
HWY_INLINE void draw(uint32_t seed, int64_t from, uint32_t* words) {
  const TagBits bits_tag;
  registers::for_each(kLanes, [&](int64_t at, size_t lanes) HWY_ATTR {
    const Bits place = hn::Iota(bits_tag, static_cast<uint32_t>(from / 4 + at));
    Bits bits = hn::Add(hn::Mul(place, hn::Set(bits_tag, 0x9E3779B9u)), hn::Set(bits_tag, seed));
    bits = hn::Mul(hn::Xor(bits, hn::ShiftRight<16>(bits)), hn::Set(bits_tag, 0x85EBCA6Bu));
    bits = hn::Mul(hn::Xor(bits, hn::ShiftRight<13>(bits)), hn::Set(bits_tag, 0xC2B2AE35u));
    registers::store(hn::Xor(bits, hn::ShiftRight<16>(bits)), words + at, lanes);
  });
}

void split_digits_randomly_of(const float* weight, uint32_t seed, Bf16* rounded, int8_t* digits, int64_t count) {
  const TagBits bits_tag;
  for (int64_t begin = 0; begin < count; begin += kDrawn) {
    alignas(64) uint32_t words[kLanes];
    draw(seed, begin, words);
    registers::for_each(std::min(kDrawn, count - begin), [&](int64_t at, size_t lanes) HWY_ATTR {
      const Bits word = hn::LoadU(bits_tag, words + at % kLanes);
      const Bits random = hn::And(hn::ShiftRightSame(word, static_cast<int>(at / kLanes * 8)), hn::Set(bits_tag, 0xFF));
      const int64_t i = begin + at;
      store_split(hn::Add(load_bits(weight + i, lanes), random), rounded + i, digits + i, lanes);
    });
  }
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(join_digits_of);
HWY_EXPORT(split_digits_of);
HWY_EXPORT(split_digits_randomly_of);

void join_digits(const Bf16* rounded, const int8_t* digits, float* weight, int64_t count) {
  HWY_DYNAMIC_DISPATCH(join_digits_of)(rounded, digits, weight, count);
}

void split_digits(const float* weight, Bf16* rounded, int8_t* digits, int64_t count) {
  HWY_DYNAMIC_DISPATCH(split_digits_of)(weight, rounded, digits, count);
}

void split_digits_randomly(const float* weight, uint32_t seed, Bf16* rounded, int8_t* digits, int64_t count) {
  HWY_DYNAMIC_DISPATCH(split_digits_randomly_of)(weight, seed, rounded, digits, count);
}

}  // namespace fsdp::kernels::raw
#endif
