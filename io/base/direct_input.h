#pragma once

#include <cstdint>
#include <filesystem>

namespace fsdp::io {

// A file read past the page cache (O_DIRECT), where its file system can: for large pieces that are read once.
// Move-only; reads are thread-safe.
class DirectInput {
 public:
  // Never throws: a file that cannot be opened this way has no data.
  explicit DirectInput(const std::filesystem::path& path);
  ~DirectInput();
  DirectInput(DirectInput&& other) noexcept;
  DirectInput& operator=(DirectInput&& other) noexcept;

  // Reads [begin, begin + num_bytes) to `out`. False if it cannot be done this way, for whatever reason: an ordinary
  // read then says what is wrong. `begin` and `out` are multiples of kDirectAlignment, and `out` has room for num_bytes
  // rounded up to one.
  bool read(uint64_t begin, uint64_t num_bytes, char* out) const;

 private:
  int descriptor_;
};

}  // namespace fsdp::io
