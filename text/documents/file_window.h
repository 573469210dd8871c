#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "io/base/input_file.h"

namespace fsdp::io {

// The piece of a file that a decompressor works on; the next one takes its place.
class FileWindow {
 public:
  explicit FileWindow(InputFile file);

  // False at the end of the file.
  bool refill();
  const char* data() const { return bytes_.data(); }
  size_t size() const { return size_; }
  // Where the piece ends in the file.
  uint64_t end() const { return end_; }
  // `[read] 'path': detail`.
  Error error(const std::string& detail) const { return file_.error("read", detail); }

 private:
  static constexpr size_t kBytes = size_t{256} << 10;

  InputFile file_;
  std::vector<char> bytes_;
  size_t size_ = 0;
  uint64_t end_ = 0;
};

}  // namespace fsdp::io
