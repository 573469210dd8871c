#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "io/base/atomic_file.h"
#include "io/gguf/ggml_type.h"

namespace fsdp::io {

// A value of a GGUF file's metadata. Arrays are of text or of 32-bit integers.
using GgufValue = std::variant<bool, uint32_t, float, std::string, std::vector<std::string>, std::vector<int32_t>>;
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // rows first, as PyTorch has it; the file has it the other way around
  GgmlType type = GgmlType::kF32;
};

// Writes a GGUF file (version 3) of one piece: metadata first, then tensors row by row in any order. The file appears
// complete or not at all. Not thread-safe. Errors are Error(kUsage) for what the format does not hold, and those of
// AtomicFile.
class GgufWriter {
 public:
  GgufWriter(const std::filesystem::path& path, const GgufMetadata& metadata, std::vector<GgufTensor> tensors);

  // `values`: a row of tensor `tensor`, shape.back() numbers; a tensor of one dimension is one row. Each row once.
  void write_row(size_t tensor, int64_t row, const float* values);

  // Throws Error(kUsage) if rows are missing.
  void commit();

 private:
  std::vector<GgufTensor> tensors_;
  std::vector<uint64_t> offsets_;  // in the file
  int64_t missing_rows_ = 0;
  std::vector<char> encoded_;
  AtomicFile file_;
};

}  // namespace fsdp::io
