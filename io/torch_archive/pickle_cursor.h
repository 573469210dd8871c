#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::io {

// Reads a pickle's bytes from front to back; never past their end. Every failure is an Error(kModel) that names file
// and byte.
class PickleCursor {
 public:
  PickleCursor(std::string_view bytes, std::string_view origin) : bytes_(bytes), origin_(origin) {}

  size_t position() const { return position_; }
  size_t num_left() const { return bytes_.size() - position_; }

  // Fails if fewer bytes are left.
  void require(uint64_t num_bytes) const;
  std::string_view take(uint64_t num_bytes);
  // Little endian, at most 8 bytes.
  uint64_t unsigned_number(size_t num_bytes);
  // Two's complement, little endian. Fails over 8 bytes.
  int64_t signed_number(uint64_t num_bytes);
  // Up to the next line feed, which is taken too. Fails over `max_bytes`.
  std::string_view line(size_t max_bytes);

  [[noreturn]] void fail(const std::string& detail) const;

 private:
  std::string_view bytes_;
  std::string_view origin_;
  size_t position_ = 0;
};

}  // namespace fsdp::io
