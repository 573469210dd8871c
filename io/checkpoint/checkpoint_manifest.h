#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/dtype.h"

namespace fsdp::io {

// What `manifest.json` of a checkpoint says (docs/checkpoint_format.md, byte by byte).

// XXH3-128.
struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const Hash128&) const = default;
};
Hash128 hash128(const void* data, size_t num_bytes);
std::string hash_text(const Hash128& hash);  // 32 lower-case hexadecimal digits, high part first

inline constexpr uint64_t kChunkBytes = uint64_t{16}
                                        << 20;  // what one hash covers; the last chunk of a file is shorter
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr int64_t kCheckpointVersion = 1;

// A file of tensors beside the manifest.
struct CheckpointFile {
  std::string name;  // a plain file name
  uint64_t bytes = 0;
  std::vector<Hash128> chunks;  // of bytes [i * kChunkBytes, (i + 1) * kChunkBytes) of the whole file, header included
};

// Elements [begin, end) of a flattened tensor, at byte `offset` of a file.
struct CheckpointPart {
  uint32_t file = 0;    // index in CheckpointManifest::files
  uint64_t offset = 0;  // bytes from the start of the file
  int64_t begin = 0;
  int64_t end = 0;
};

// A logical tensor: its parts are sorted, do not overlap and cover all of it.
struct CheckpointTensor {
  std::string name;  // "model/layers.0.weight"
  DType dtype = DType::F32;
  std::vector<int64_t> shape;  // of the whole tensor
  std::vector<CheckpointPart> parts;

  int64_t numel() const;
};

struct CheckpointManifest {
  int64_t step = 0;
  int64_t world_size = 1;                            // ranks that wrote it
  std::string created;                               // UTC, "2026-01-31T12:00:00Z"
  std::string writer;                                // "fsdp 0.1.0"
  nlohmann::json values = nlohmann::json::object();  // small state, by section
  std::vector<CheckpointFile> files;
  std::vector<CheckpointTensor> tensors;  // sorted by name

  // The tensor of that name, or null.
  const CheckpointTensor* find(std::string_view name) const;
};

// The text of the file: its last member, "digest", is the XXH3-128 of everything before the digest's own digits.
std::string manifest_text(const CheckpointManifest& manifest);

// Checks the digest and then every rule above; believes nothing before it is checked. `origin` (a path) starts every
// message. Throws Error(kModel).
CheckpointManifest parse_manifest(std::string_view text, std::string_view origin);

// Of the checkpoint in `folder`. A missing file is Error(kModel): the checkpoint was never finished.
CheckpointManifest read_manifest(const std::filesystem::path& folder);

}  // namespace fsdp::io
