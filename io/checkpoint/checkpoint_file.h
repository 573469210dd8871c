#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/dtype.h"
#include "io/base/file_ops.h"
#include "io/checkpoint/checkpoint_manifest.h"

namespace fsdp::io {

// Elements [begin, end) of a flattened logical tensor, as one process writes them.
struct FlatRange {
  std::string name;
  DType dtype = DType::F32;
  int64_t begin = 0;
  int64_t end = 0;

  uint64_t bytes() const { return static_cast<uint64_t>(end - begin) * item_size(dtype); }
  // The name of its entry in the safetensors file: "model/weight[128:256]".
  std::string entry_name() const;
};

// memcpy().
void copy_bytes(void* to, const void* from, size_t bytes);

// What a file of ranges looks like before it exists: a safetensors file whose entries are 1-D. Each range starts at a
// multiple of 64 bytes of the file (gaps are entries named "pad/<n>" of dtype U8), the first at a multiple of
// kDirectAlignment.
class FileImage {
 public:
  // Ranges keep their order. Empty ones are left out: offset(i) is 0.
  explicit FileImage(std::vector<FlatRange> ranges);

  const std::vector<FlatRange>& ranges() const { return ranges_; }
  uint64_t bytes() const { return bytes_; }
  // Where range i starts, from the start of the file.
  uint64_t offset(size_t i) const { return offsets_[i]; }

  using CopyBytes = void (*)(void* to, const void* from, size_t bytes);

  // Bytes [begin, end) of the file, from the ranges' own data: sources[i] holds the bytes of range i. Local;
  // thread-safe.
  void compose(std::span<const void* const> sources, uint64_t begin, uint64_t end, void* out) const;
  // The same by a copy of the caller's, who knows what becomes of `out`.
  void compose(std::span<const void* const> sources, uint64_t begin, uint64_t end, void* out, CopyBytes copy) const;

 private:
  std::vector<FlatRange> ranges_;
  std::vector<uint64_t> offsets_;
  std::vector<size_t> filled_;  // the ranges that are not empty, in the order of the file
  std::string header_;          // length, JSON, spaces up to the first range
  uint64_t bytes_ = 0;
};

// Writes a whole image to a new file and syncs it: `num_threads` workers compose, hash and write chunk after chunk.
// Signals are blocked in the workers. Returns what the manifest says of it. Throws Error(kFileSystem).
// `copy` is called by the workers, for each piece of a source once or more.
CheckpointFile write_image(FileOps& files, const std::filesystem::path& path, const FileImage& image,
                           std::span<const void* const> sources, int num_threads,
                           FileImage::CopyBytes copy = copy_bytes);

// The same from memory that holds the composed image already (image.bytes() bytes, aligned to kDirectAlignment and
// with room up to the next multiple of it): nothing is copied.
CheckpointFile write_image(FileOps& files, const std::filesystem::path& path, const FileImage& image,
                           const void* composed, int num_threads);
// A plain array of sources would be taken for a composed image: make a span of it.
CheckpointFile write_image(FileOps&, const std::filesystem::path&, const FileImage&, const void* const*, int) = delete;

// A byte range of one of the checkpoint's files, and where it goes.
struct ReadRange {
  uint32_t file = 0;  // index in CheckpointManifest::files
  uint64_t offset = 0;
  uint64_t bytes = 0;
  void* out = nullptr;
};

// Reads the ranges with `num_threads` workers. Every chunk that holds a wanted byte is read once, whole, and its hash
// checked before a byte of it is handed out. Throws Error(kModel) naming file and chunk for a file that is missing,
// too short or too long, or a hash that differs; `out` memory may then hold anything.
void read_ranges(const std::filesystem::path& folder, const CheckpointManifest& manifest, std::vector<ReadRange> ranges,
                 int num_threads);

// Reads every chunk whose number (counted over all files) is part_index modulo num_parts, and checks its hash; checks
// all file sizes. Each worker tells `checked`, where there is one, the size of every chunk that is right. Throws as
// read_ranges().
void verify_chunks(const std::filesystem::path& folder, const CheckpointManifest& manifest, int part_index,
                   int num_parts, int num_threads, const std::function<void(uint64_t bytes)>& checked = {});

}  // namespace fsdp::io
