#include "fsdp/cuda/devices.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace fsdp::cuda {
namespace {

int num_driver_devices() {
  const std::filesystem::path gpus = "/proc/driver/nvidia/gpus";
  if (!std::filesystem::exists(gpus)) return 0;
  return static_cast<int>(std::distance(std::filesystem::directory_iterator(gpus), {}));
}

TEST(Devices, AreThoseOfTheDriver) { EXPECT_EQ(static_cast<int>(devices().size()), num_driver_devices()); }

TEST(Devices, HaveNamesAndSizes) {
  for (const DeviceProperties& device : devices()) {
    EXPECT_FALSE(device.name.empty());
    EXPECT_GE(device.compute_capability, 50);
    EXPECT_GT(device.multiprocessors, 0);
    EXPECT_GT(device.memory_bytes, int64_t{1} << 30);
    EXPECT_GT(device.memory_bandwidth, 1e10);
  }
}

}  // namespace
}  // namespace fsdp::cuda
