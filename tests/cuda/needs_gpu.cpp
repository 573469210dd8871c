// Skips all tests of the program where there is no GPU.
#include <gtest/gtest.h>

#include "fsdp/cuda/devices.h"

namespace fsdp::cuda::needs_gpu {
namespace {

class NeedsGpu : public ::testing::Environment {
  void SetUp() override {
    if (devices().empty()) GTEST_SKIP() << "there is no GPU here";
  }
};

const auto* const environment = ::testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace
}  // namespace fsdp::cuda::needs_gpu
