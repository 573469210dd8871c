#pragma once

#include <cstddef>

namespace fsdp::fuzz {

// While it lives, the process may not hold more than 64 MiB and four times the input above what it held before: sizes
// that a file claims must not be believed. Needs AddressSanitizer; without it (replay of the normal build) it does
// nothing. One at a time.
class MemoryGate {
 public:
  explicit MemoryGate(size_t input_bytes);
  ~MemoryGate();
  MemoryGate(const MemoryGate&) = delete;
  MemoryGate& operator=(const MemoryGate&) = delete;
};

}  // namespace fsdp::fuzz
