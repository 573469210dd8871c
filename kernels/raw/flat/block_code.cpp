#include "kernels/raw/flat/block_code.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/flat/block_code.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

#include "kernels/raw/flat/registers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using registers::Tag;
using registers::TagBits;
using registers::TagInt;

constexpr float kLeastScale = 1e-38F;

void decode_block_of(const uint8_t* codes, float scale, const float* fractions, float* numbers, int64_t count) {
  const auto wide = hn::Set(Tag(), scale);
  registers::for_each(count, [&](int64_t at, size_t lanes) HWY_ATTR {
    const auto index = hn::PromoteTo(TagInt(), registers::load(codes + at, lanes));
    registers::store(hn::Mul(hn::GatherIndex(Tag(), fractions, index), wide), numbers + at, lanes);
  });
}

// Of magnitudes as integers, which have the same order, NaN above all.
float largest_magnitude_of(const float* numbers, int64_t count) {
  const auto magnitude = hn::Set(TagBits(), 0x7FFFFFFFu);
  auto most = hn::Zero(TagBits());
  registers::for_each(count, [&](int64_t at, size_t lanes) HWY_ATTR {
    most = hn::Max(most, hn::And(hn::BitCast(TagBits(), registers::load(numbers + at, lanes)), magnitude));
  });
  alignas(64) uint32_t each[registers::kFull];
  hn::Store(most, TagBits(), each);
  return std::bit_cast<float>(*std::max_element(each, each + registers::kFull));
}

void encode_block_of(const float* numbers, float scale, const BlockCodes& code, uint8_t* codes, int64_t count) {
  const TagBits bits_tag;
  const TagInt int_tag;
  const auto divisor = hn::Set(Tag(), std::max(scale, kLeastScale));
  const auto* steps = reinterpret_cast<const int32_t*>(code.steps());
  const int lower_bits = code.num_lower_bits();
  const auto lower = hn::Set(bits_tag, (1u << lower_bits) - 1);
  const auto first = hn::Set(bits_tag, code.first_key()), last = hn::Set(bits_tag, code.first_key() + code.keys() - 1);
  const auto keys = hn::Set(int_tag, static_cast<int32_t>(code.keys()));
  registers::for_each(count, [&](int64_t at, size_t lanes) HWY_ATTR {
    const auto bits = hn::BitCast(bits_tag, hn::Div(registers::load(numbers + at, lanes), divisor));
    const auto magnitude = hn::And(bits, hn::Set(bits_tag, 0x7FFFFFFFu));
    const auto negative = hn::BroadcastSignBit(hn::BitCast(int_tag, bits));  // -1 or 0
    const auto key = hn::Sub(hn::Min(hn::Max(hn::ShiftRightSame(magnitude, lower_bits), first), last), first);
    const auto step = hn::Add(hn::BitCast(int_tag, key), hn::And(negative, keys));
    const auto found = hn::BitCast(bits_tag, hn::GatherIndex(int_tag, steps, step));
    const auto next_from = hn::And(found, hn::Set(bits_tag, 0xFFFFFFu));
    const auto stays = hn::Gt(hn::BitCast(int_tag, next_from), hn::BitCast(int_tag, hn::And(magnitude, lower)));
    const auto up_or_down = hn::Or(negative, hn::Set(int_tag, 1));
    const auto chosen = hn::Add(hn::BitCast(int_tag, hn::ShiftRight<24>(found)), hn::IfThenZeroElse(stays, up_or_down));
    registers::store(hn::DemoteTo(registers::TagOf<uint8_t>(), chosen), codes + at, lanes);
  });
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(decode_block_of);
HWY_EXPORT(encode_block_of);
HWY_EXPORT(largest_magnitude_of);

namespace {
constexpr uint32_t kSign = 0x80000000u;
}  // namespace

BlockCodes::BlockCodes(const float* fractions) {
  std::copy_n(fractions, fractions_.size(), fractions_.begin());
  for (size_t i = 0; i < borders_.size(); ++i) borders_[i] = (fractions_[i] + fractions_[i + 1]) / 2;
  for (num_lower_bits_ = 18; num_lower_bits_ >= 14; --num_lower_bits_) {
    if (make_steps()) return;
  }
  throw std::invalid_argument("[block_code] got fractions that are too near each other.");
}

uint8_t BlockCodes::code_of(float fraction) const {
  const auto is_below = [](float border, float value) { return !(border >= value); };
  return static_cast<uint8_t>(std::lower_bound(borders_.begin(), borders_.end(), fraction, is_below) -
                              borders_.begin());
}

// From the key below that of the smallest border on, up to that of 1.
bool BlockCodes::make_steps() {
  float least = 1;
  for (const float border : borders_) least = border == 0 ? least : std::min(least, std::abs(border));
  first_key_ = (std::bit_cast<uint32_t>(least) >> num_lower_bits_) - 1;
  keys_ = (std::bit_cast<uint32_t>(1.0F) >> num_lower_bits_) - first_key_ + 1;
  steps_.clear();
  for (const uint32_t sign : {0u, kSign}) {
    for (uint32_t key = first_key_; key < first_key_ + keys_; ++key) {
      if (!add_step(key, sign)) return false;
    }
  }
  return true;
}

// False if more than one border lies in it.
bool BlockCodes::add_step(uint32_t key, uint32_t sign) {
  const uint32_t lowest = key << num_lower_bits_, end = 1u << num_lower_bits_;
  const auto code_at = [&](uint32_t lower) {
    return static_cast<int>(code_of(std::bit_cast<float>(sign | (lowest + lower))));
  };
  const int code = code_at(0);
  uint32_t from = end, same = 0;  // `same` has the code, `from` the next
  if (code_at(end - 1) != code) from = end - 1;
  if (from != end && code_at(from) != code + (sign == 0 ? 1 : -1)) return false;
  while (from != end && from - same > 1) {
    const uint32_t middle = (from + same) / 2;
    (code_at(middle) == code ? same : from) = middle;
  }
  steps_.push_back(static_cast<uint32_t>(code) << 24 | from);
  return true;
}

void decode_block(const uint8_t* codes, float scale, const BlockCodes& code, float* numbers, int64_t count) {
  HWY_DYNAMIC_DISPATCH(decode_block_of)(codes, scale, code.fractions(), numbers, count);
}

float encode_block(const float* numbers, const BlockCodes& code, uint8_t* codes, int64_t count) {
  const float scale = HWY_DYNAMIC_DISPATCH(largest_magnitude_of)(numbers, count);
  if (std::isfinite(scale)) {
    HWY_DYNAMIC_DISPATCH(encode_block_of)(numbers, scale, code, codes, count);
  } else {
    for (int64_t i = 0; i < count; ++i) codes[i] = code.code_of(numbers[i] / scale);
  }
  return scale;
}

}  // namespace fsdp::kernels::raw
#endif
