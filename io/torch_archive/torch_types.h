#pragma once

#include <optional>
#include <string_view>

#include "io/base/dtype.h"

namespace fsdp::io {

// How PyTorch calls an element type in its files.
struct TorchType {
  std::string_view name;         // torch.<name>
  std::string_view storage;      // torch.<storage>; empty: saved as UntypedStorage
  std::optional<DType> dtype{};  // nothing: known by name, not readable here
};

inline constexpr TorchType kTorchTypes[] = {
    {"bool", "BoolStorage", DType::BOOL},
    {"uint8", "ByteStorage", DType::U8},
    {"int8", "CharStorage", DType::I8},
    {"int16", "ShortStorage", DType::I16},
    {"uint16", "", DType::U16},
    {"int32", "IntStorage", DType::I32},
    {"uint32", "", DType::U32},
    {"int64", "LongStorage", DType::I64},
    {"uint64", "", DType::U64},
    {"float16", "HalfStorage", DType::F16},
    {"bfloat16", "BFloat16Storage", DType::BF16},
    {"float32", "FloatStorage", DType::F32},
    {"float64", "DoubleStorage", DType::F64},
    {"float8_e4m3fn", "", DType::F8_E4M3},
    {"float8_e5m2", "", DType::F8_E5M2},
    {"complex32", ""},
    {"complex64", "ComplexFloatStorage"},
    {"complex128", "ComplexDoubleStorage"},
    {"float8_e4m3fnuz", ""},
    {"float8_e5m2fnuz", ""},
    {"float8_e8m0fnu", ""},
    {"float4_e2m1fn_x2", ""},
    {"quint8", "QUInt8Storage"},
    {"qint8", "QInt8Storage"},
    {"qint32", "QInt32Storage"},
};

// The entry of a type that can be stored.
constexpr const TorchType& torch_type(DType dtype) {
  for (const TorchType& type : kTorchTypes) {
    if (type.dtype == dtype) return type;
  }
  return kTorchTypes[0];  // never: every DType is in the table
}

}  // namespace fsdp::io
