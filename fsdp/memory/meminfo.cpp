#include "fsdp/memory/meminfo.h"

#include <fstream>

namespace fsdp {

// "MemTotal:  16384 kB".
int64_t meminfo_bytes(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  std::string word;
  int64_t kib = 0;
  while (file >> word) {
    if (word == key + ":" && file >> kib) return kib << 10;
    file.ignore(256, '\n');
  }
  return 0;
}

}  // namespace fsdp
