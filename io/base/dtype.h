#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdp::io {

inline constexpr size_t kMaxRank = 8;  // dimensions of a tensor, in every format we read or write

// Element types of a safetensors file, named as the format names them. Types of less than a byte are not supported.
enum class DType : uint8_t { BOOL, U8, I8, I16, U16, I32, U32, I64, U64, F16, BF16, F32, F64, F8_E4M3, F8_E5M2 };

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  size_t item_size;  // bytes per element
};

inline constexpr std::array<DTypeInfo, 15> kDTypes = {{
    {DType::BOOL, "BOOL", 1},
    {DType::U8, "U8", 1},
    {DType::I8, "I8", 1},
    {DType::I16, "I16", 2},
    {DType::U16, "U16", 2},
    {DType::I32, "I32", 4},
    {DType::U32, "U32", 4},
    {DType::I64, "I64", 8},
    {DType::U64, "U64", 8},
    {DType::F16, "F16", 2},
    {DType::BF16, "BF16", 2},
    {DType::F32, "F32", 4},
    {DType::F64, "F64", 8},
    {DType::F8_E4M3, "F8_E4M3", 1},
    {DType::F8_E5M2, "F8_E5M2", 1},
}};

// Bytes per element.
constexpr size_t item_size(DType dtype) { return kDTypes.at(static_cast<size_t>(dtype)).item_size; }

// The format's name, such as "BF16".
constexpr std::string_view name(DType dtype) { return kDTypes.at(static_cast<size_t>(dtype)).name; }

// The type of that name, or nothing.
constexpr std::optional<DType> dtype_of(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

}  // namespace fsdp::io
