#pragma once

#include <cstdint>

namespace fsdp::train {

// Memory of this process as the kernel counts it.
struct ProcessMemory {
  int64_t resident_bytes = 0;
  int64_t peak_bytes = 0;  // largest resident_bytes so far
};

ProcessMemory process_memory();

}  // namespace fsdp::train
