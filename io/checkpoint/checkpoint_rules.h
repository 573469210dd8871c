#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "io/base/error.h"
#include "io/checkpoint/checkpoint_manifest.h"

namespace fsdp::io {

inline constexpr uint64_t kMaxManifestBytes = uint64_t{256} << 20;
inline constexpr int64_t kMaxManifestValues = int64_t{1} << 25;  // JSON values
inline constexpr int kMaxManifestDepth = 64;
inline constexpr size_t kMaxCheckpointEntries = size_t{1} << 20;  // files, and tensors
inline constexpr size_t kMaxCheckpointRank = 8;

// What a refused checkpoint's message ends with.
inline constexpr const char* kChooseAnother = " Choose another checkpoint (resume=auto passes over it).";

constexpr uint64_t num_chunks(uint64_t file_bytes) {
  return file_bytes / kChunkBytes + (file_bytes % kChunkBytes != 0 ? 1 : 0);
}

// Every rule of docs/checkpoint_format.md on what a manifest says: names, counts, and parts that cover their tensors
// and lie inside their files. `origin` starts the message. Throws Error(kind).
void check_manifest(const CheckpointManifest& manifest, std::string_view origin, ErrorKind kind);

}  // namespace fsdp::io
