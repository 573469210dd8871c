#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "io/base/error.h"

namespace fsdp::io {

// A regular file open for reading at explicit offsets. Move-only; owns its descriptor; reads are thread-safe.
// pread and not mmap on purpose: a file that is truncated while it is mapped kills the process with SIGBUS, here it is
// an Error.
class InputFile {
 public:
  // Throws Error(kind) if `path` is missing, a folder or not a regular file; Error(kFileSystem) if the system refuses.
  InputFile(std::filesystem::path path, ErrorKind kind);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  // Size in bytes when the file was opened.
  uint64_t size() const { return size_; }

  // Reads exactly `num_bytes` at `offset`. Throws Error(kind) naming file and offset if the file ends before that.
  void read_at(uint64_t offset, void* out, size_t num_bytes) const;
  // Whether the page cache has all of these bytes; false where the system does not tell (Linux before 6.5).
  bool is_cached(uint64_t offset, size_t num_bytes) const;

  // The error of this file's kind: `[op] 'path': detail`.
  Error error(std::string_view op, std::string_view detail) const;

 private:
  std::filesystem::path path_;
  ErrorKind kind_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

// Whether something is there that this process may see.
bool can_be_found(const std::filesystem::path& path);

}  // namespace fsdp::io
