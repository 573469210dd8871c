#include "fsdp/comm/rendezvous/nccl_settings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace fsdp::comm {
namespace {

const std::vector<const char*> kNames = {
    "TORCH_FR_BUFFER_SIZE",     "TORCH_NCCL_TRACE_BUFFER_SIZE",    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_FR_DUMP_TEMP_FILE",  "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_ASYNC_ERROR_HANDLING"};

std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "unset" : value;
}

// Starts without any of the variables, and puts back what was there.
class NcclSettings : public ::testing::Test {
 public:
  NcclSettings() {
    for (const char* name : kNames) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      unsetenv(name);
    }
  }
  ~NcclSettings() override {
    for (const char* name : kNames) unsetenv(name);
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::map<std::string, std::string> before_;
};

TEST_F(NcclSettings, AreSetWhereTheUserSetNothing) {
  set_nccl_defaults("run/calls");
  EXPECT_EQ(value_of("TORCH_FR_BUFFER_SIZE"), "2000");
  EXPECT_EQ(value_of("TORCH_NCCL_DUMP_ON_TIMEOUT"), "1");
  EXPECT_EQ(value_of("TORCH_FR_DUMP_TEMP_FILE"), "run/calls/nccl-rank");
  EXPECT_EQ(value_of("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
  EXPECT_EQ(value_of("TORCH_NCCL_TRACE_BUFFER_SIZE"), "unset");
}

TEST_F(NcclSettings, LeaveWhatTheUserSetUnderAnyName) {
  setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "17", 1);
  setenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "mine", 1);
  setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 1);
  setenv("NCCL_ASYNC_ERROR_HANDLING", "2", 1);
  set_nccl_defaults("run/calls");
  EXPECT_EQ(value_of("TORCH_FR_BUFFER_SIZE"), "unset");
  EXPECT_EQ(value_of("TORCH_FR_DUMP_TEMP_FILE"), "unset");
  EXPECT_EQ(value_of("TORCH_NCCL_DUMP_ON_TIMEOUT"), "0");
  EXPECT_EQ(value_of("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "unset");
}

TEST_F(NcclSettings, TurnWhatTorchrunExportsIntoModeThree) {
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", 1);
  set_nccl_defaults("");
  EXPECT_EQ(value_of("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
  EXPECT_EQ(value_of("TORCH_FR_DUMP_TEMP_FILE"), "unset");
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 1);
  set_nccl_defaults("");
  EXPECT_EQ(value_of("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "0");
}

}  // namespace
}  // namespace fsdp::comm
