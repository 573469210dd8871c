#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdp::fuzz {

// While it lives, the process may not hold more than 64 MiB and four times the input above what it held before: sizes
// that a file claims must not be believed. And it may not compute for more than a second; time that other programs take
// does not count. Memory is seen only under AddressSanitizer. One at a time.
class CostGate {
 public:
  explicit CostGate(size_t input_bytes);
  ~CostGate();
  CostGate(const CostGate&) = delete;
  CostGate& operator=(const CostGate&) = delete;

 private:
  int64_t start_ns_;  // CPU time of the process
};

}  // namespace fsdp::fuzz
