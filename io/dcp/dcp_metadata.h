#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/dtype.h"

namespace fsdp::io {

// What `.metadata` of a checkpoint of torch.distributed.checkpoint (DCP) says.

// The Python module of the classes that it consists of.
inline constexpr std::string_view kDcpMetadataModule = "torch.distributed.checkpoint.metadata";

// A box of a tensor, saved with torch.save in a part of a file. Chunks without elements are left out.
struct DcpChunk {
  std::vector<int64_t> offsets;  // per dim, in the tensor
  std::vector<int64_t> sizes;
  uint32_t file = 0;    // index in DcpMetadata::files
  uint64_t offset = 0;  // bytes from the start of the file
  uint64_t length = 0;  // bytes of the whole archive, not of the elements
};

struct DcpTensor {
  std::string name;  // DCP's fully qualified name: "model.layers.0.weight"
  std::vector<int64_t> shape;
  std::string_view type;       // PyTorch's name: "bfloat16"
  std::optional<DType> dtype;  // nothing: a type we cannot read
  std::vector<DcpChunk> chunks;

  int64_t numel() const;
};

struct DcpMetadata {
  std::vector<std::string> files;    // plain file names, as "__0_0.distcp"
  std::vector<DcpTensor> tensors;    // sorted by name; chunks do not overlap and cover all of their tensor
  std::vector<std::string> objects;  // sorted names of entries that are no tensors: pickles, never read

  // The tensor of that name, or null.
  const DcpTensor* find(std::string_view name) const;
};

inline constexpr const char* kDcpMetadataName = ".metadata";

// Reads `.metadata` as data (pickle_reader.h) and checks every rule above; believes nothing before it is checked.
// `origin` (a path) starts every message. Throws Error(kModel).
DcpMetadata parse_dcp_metadata(std::string bytes, std::string_view origin);

// Of the checkpoint in `folder`. A missing file is Error(kModel): DCP writes it last.
DcpMetadata read_dcp_metadata(const std::filesystem::path& folder);

}  // namespace fsdp::io
