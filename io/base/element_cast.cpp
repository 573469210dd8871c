#include "io/base/element_cast.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace fsdp::io {

namespace {

float float_of_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 0x1F;
  const uint32_t fraction = half & 0x3FF;
  if (exponent == 0) return std::copysign(static_cast<float>(fraction) * 0x1p-24F, std::bit_cast<float>(sign));
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | fraction << 13);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t bfloat16_of(float value) {
  if (std::isnan(value)) return 0x7FC0;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

uint16_t half_of(float value) {
  if (std::isnan(value)) return 0x7E00;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t size = bits & 0x7FFFFFFF;
  if (size >= 0x477FF000) return sign | 0x7C00;  // from 65520 on
  if (size < 0x38800000) {                       // below 2^-14 numbers are multiples of 2^-24
    return sign | static_cast<uint16_t>(std::nearbyint(std::fabs(value) * 0x1p24F));
  }
  return sign | static_cast<uint16_t>((size + 0xFFF + (size >> 13 & 1) - 0x38000000) >> 13);
}

// One stored element, which need not be aligned, as a float.
template <DType kFrom>
float load(const char* element) {
  if constexpr (kFrom == DType::F64) {
    double value = 0;
    std::memcpy(&value, element, sizeof(value));
    return static_cast<float>(value);
  } else if constexpr (kFrom == DType::F32) {
    float value = 0;
    std::memcpy(&value, element, sizeof(value));
    return value;
  } else {
    uint16_t bits = 0;
    std::memcpy(&bits, element, sizeof(bits));
    return kFrom == DType::F16 ? float_of_half(bits) : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
}

template <DType kFrom>
void cast(const char* from, DType to, char* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i, from += item_size(kFrom)) {
    const float value = load<kFrom>(from);
    if (to == DType::F32) {
      std::memcpy(out, &value, sizeof(value));
      out += sizeof(value);
    } else {
      const uint16_t bits = to == DType::F16 ? half_of(value) : bfloat16_of(value);
      std::memcpy(out, &bits, sizeof(bits));
      out += sizeof(bits);
    }
  }
}

}  // namespace

bool is_float(DType dtype) {
  return dtype == DType::F16 || dtype == DType::BF16 || dtype == DType::F32 || dtype == DType::F64;
}

void cast_elements(DType from, const void* from_data, DType to, void* to_data, int64_t count) {
  const auto* in = static_cast<const char*>(from_data);
  auto* out = static_cast<char*>(to_data);
  switch (from) {
    case DType::F16:
      return cast<DType::F16>(in, to, out, count);
    case DType::BF16:
      return cast<DType::BF16>(in, to, out, count);
    case DType::F32:
      return cast<DType::F32>(in, to, out, count);
    case DType::F64:
      return cast<DType::F64>(in, to, out, count);
    default:
      return;
  }
}

}  // namespace fsdp::io
