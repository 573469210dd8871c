#include "fsdp/comm/host/processor_cache.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "fsdp/base/units.h"

namespace fsdp::comm {
namespace {

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "32768K" or "32M"; 0 where it is something else.
int64_t parse_size(const std::string& text) {
  std::istringstream stream(text);
  int64_t number = 0;
  char unit = 0;
  if (!(stream >> number >> unit)) return 0;
  return unit == 'K' ? number * kKiB : unit == 'M' ? number * kMiB : 0;
}

struct Cache {
  std::string level;
  std::string cpus;
  int64_t bytes = 0;
};

Cache last_level_cache(const std::filesystem::path& cpu) {
  Cache last;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(cpu / "cache", none)) {
    const std::string level = first_line(entry.path() / "level");
    if (level <= last.level) continue;
    last = {level, first_line(entry.path() / "shared_cpu_list"), parse_size(first_line(entry.path() / "size"))};
  }
  return last;
}

}  // namespace

int64_t processor_cache_bytes(const std::string& cpus) {
  std::map<std::string, int64_t> bytes_of;  // by the processors that share it
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(cpus, none)) {
    const Cache cache = last_level_cache(entry.path());
    if (cache.bytes > 0) bytes_of[cache.cpus] = cache.bytes;
  }
  int64_t sum = 0;
  for (const auto& [sharers, bytes] : bytes_of) sum += bytes;
  return sum > 0 ? sum : std::numeric_limits<int64_t>::max();
}

}  // namespace fsdp::comm
