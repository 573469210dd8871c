#pragma once

#include <cstdint>

namespace fsdp {

// What comes before a record's name in an archive.
struct ZipHeader {
  uint8_t bytes[30];

  // Method 0 is "stored".
  bool compressed() const { return bytes[8] != 0 || bytes[9] != 0; }
};

}  // namespace fsdp
