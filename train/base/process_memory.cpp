#include "train/base/process_memory.h"

#include <cstdio>
#include <fstream>
#include <string>

namespace fsdp::train {

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream file("/proc/self/status");
  int64_t kib = 0;
  for (std::string line; std::getline(file, line);) {
    if (std::sscanf(line.c_str(), "VmRSS: %ld kB", &kib) == 1) {
      memory.resident_bytes = kib * 1024;
    } else if (std::sscanf(line.c_str(), "VmHWM: %ld kB", &kib) == 1) {
      memory.peak_bytes = kib * 1024;
    }
  }
  return memory;
}

}  // namespace fsdp::train
