#include "fsdp/comm/host/processor_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "tests/io/temporary_folder.h"

namespace fsdp::comm {
namespace {

void list_cache(const std::filesystem::path& cpu, int index, int level, const std::string& size,
                const std::string& sharers) {
  const auto folder = cpu / "cache" / ("index" + std::to_string(index));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "level") << level << "\n";
  std::ofstream(folder / "size") << size << "\n";
  std::ofstream(folder / "shared_cpu_list") << sharers << "\n";
}

TEST(ProcessorCache, CountsEachLastLevelCacheOnce) {
  const io::TemporaryFolder folder;
  for (int cpu = 0; cpu < 4; ++cpu) {
    const auto path = folder.path() / ("cpu" + std::to_string(cpu));
    list_cache(path, 0, 1, "48K", std::to_string(cpu));
    list_cache(path, 3, 3, cpu < 2 ? "32768K" : "16M", cpu < 2 ? "0-1" : "2-3");
    list_cache(path, 2, 2, "1024K", std::to_string(cpu));
  }
  std::filesystem::create_directories(folder.path() / "cpufreq");
  EXPECT_EQ(processor_cache_bytes(folder.path()), (int64_t{32} << 20) + (int64_t{16} << 20));
}

TEST(ProcessorCache, IsBoundlessWhereNoneIsListed) {
  const io::TemporaryFolder folder;
  EXPECT_EQ(processor_cache_bytes(folder.path()), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(processor_cache_bytes(folder.path() / "nothing"), std::numeric_limits<int64_t>::max());
  list_cache(folder.path() / "cpu0", 0, 1, "48 furlongs", "0");
  EXPECT_EQ(processor_cache_bytes(folder.path()), std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace fsdp::comm
