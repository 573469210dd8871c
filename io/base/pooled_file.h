#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "io/base/input_file.h"

namespace fsdp::io {

// One of many files that are read again and again. Of all pooled files of the process at most kMostOpen are open at a
// time, those used last: a data set of ten thousand shards needs no more descriptors than one of a hundred. Move-only;
// const calls are thread-safe.
class PooledFile {
 public:
  static constexpr size_t kMostOpen = 128;

  // Opens it for the first time. Throws as InputFile.
  PooledFile(std::filesystem::path path, ErrorKind kind);
  ~PooledFile();
  PooledFile(PooledFile&& other) noexcept;
  PooledFile& operator=(PooledFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }

  // The open file, which stays open while the pointer lives. Throws as InputFile, and Error(kind) if the size is no
  // longer that of the first time.
  std::shared_ptr<const InputFile> open() const;

 private:
  std::filesystem::path path_;
  ErrorKind kind_;
  uint64_t id_ = 0;  // 0: moved from
  uint64_t size_ = 0;
};

}  // namespace fsdp::io
