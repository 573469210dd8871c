#include "io/gguf/ggml_type.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/base/element_cast.h"

namespace fsdp::io {

namespace {

constexpr int64_t kQ8Elements = 32;
constexpr int64_t kQ8Bytes = 2 + kQ8Elements;

void encode_q8_block(const float* values, char* out) {
  float largest = 0;
  for (int64_t i = 0; i < kQ8Elements; ++i) largest = std::max(largest, std::fabs(values[i]));
  const float scale = largest / 127;
  const float inverse = scale == 0 ? 0 : 1 / scale;
  cast_elements(DType::F32, &scale, DType::F16, out, 1);
  for (int64_t i = 0; i < kQ8Elements; ++i)
    out[2 + i] = static_cast<char>(static_cast<int8_t>(std::round(values[i] * inverse)));
}

}  // namespace

std::string_view name(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return "F32";
    case GgmlType::kF16:
      return "F16";
    case GgmlType::kQ8_0:
      return "Q8_0";
    case GgmlType::kBF16:
      return "BF16";
  }
  return "?";
}

int64_t block_elements(GgmlType type) { return type == GgmlType::kQ8_0 ? kQ8Elements : 1; }

int64_t bytes_of(GgmlType type, int64_t elements) {
  if (type == GgmlType::kQ8_0) return elements / kQ8Elements * kQ8Bytes;
  return elements * (type == GgmlType::kF32 ? 4 : 2);
}

void encode_row(GgmlType type, const float* values, int64_t count, char* out) {
  switch (type) {
    case GgmlType::kF32:
      std::memcpy(out, values, static_cast<size_t>(count) * sizeof(float));
      return;
    case GgmlType::kF16:
      return cast_elements(DType::F32, values, DType::F16, out, count);
    case GgmlType::kBF16:
      return cast_elements(DType::F32, values, DType::BF16, out, count);
    case GgmlType::kQ8_0:
      for (int64_t i = 0; i < count; i += kQ8Elements, out += kQ8Bytes) encode_q8_block(values + i, out);
      return;
  }
}

}  // namespace fsdp::io
