#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "io/base/dtype.h"
#include "io/base/input_file.h"

namespace fsdp::io {

// Where the elements of a tensor lie that torch.save wrote: row-major, little endian.
struct SavedTensor {
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // byte of the file
  uint64_t bytes = 0;
  std::optional<uint32_t> crc32;  // of these bytes, where the file has it
};

// Finds the one tensor of the archive in bytes [begin, begin + length) of a file; its elements are not read. The pickle
// inside is read as data (pickle_reader.h). Throws the file's kind of Error, or Error(kModel), for a damaged archive,
// anything that is not one plain dense tensor, big endian, and strides other than row-major.
SavedTensor find_saved_tensor(const InputFile& file, uint64_t begin, uint64_t length);

}  // namespace fsdp::io
