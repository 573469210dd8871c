#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "io/base/error.h"

namespace fsdp::io {

// A file that appears under its name complete or not at all. Writes go to a temporary file in the same folder
// (`.<name>.tmp-<pid>-<n>`); commit() flushes it to the disk, renames it over the target and flushes the folder.
// Move-only. Not thread-safe, except write_at on ranges that do not overlap. Every failure throws Error(kFileSystem)
// with the path and the system's words.
class AtomicFile {
 public:
  // Creates the temporary file with mode 0644. The folder must exist.
  explicit AtomicFile(std::filesystem::path target);
  // Removes the temporary file unless commit() succeeded.
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;

  const std::filesystem::path& target() const { return target_; }
  const std::filesystem::path& temporary() const { return temporary_; }

  // Appends after what earlier write() calls wrote.
  void write(const void* data, size_t num_bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // Writes at an offset and leaves the append position alone.
  void write_at(uint64_t offset, const void* data, size_t num_bytes);

  // After this call nothing can be written any more. Once it returns, the file survives a power failure.
  void commit();

 private:
  void discard() noexcept;

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  uint64_t position_ = 0;
};

// Replaces the content of `path` with `text`, atomically and durably.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

// Copies a file; unlike std::filesystem's, atomically and durably. A source that cannot be read is Error(kind).
void copy_file_atomically(const std::filesystem::path& from, const std::filesystem::path& to, ErrorKind kind);

// Flushes a folder's entries to the disk: needed after a rename for it to survive a power failure.
void sync_folder(const std::filesystem::path& folder);

}  // namespace fsdp::io
