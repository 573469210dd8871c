#include "fsdp/base/lack_of_memory.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

namespace fsdp {
namespace {

TEST(LackOfMemory, IsSeenInWhateverForm) {
  EXPECT_TRUE(is_lack_of_memory(std::bad_alloc()));
  EXPECT_TRUE(is_lack_of_memory(std::system_error(ENOMEM, std::generic_category())));
  EXPECT_TRUE(
      is_lack_of_memory(std::system_error(EAGAIN, std::generic_category(), "thread")));  // as std::thread throws it
  EXPECT_TRUE(is_lack_of_memory(std::runtime_error(std::string("[tcp/pair.cc:4] socket: ") + std::strerror(ENOMEM))));
  EXPECT_TRUE(is_lack_of_memory(std::runtime_error("could not create a primitive")));  // oneDNN's
  EXPECT_TRUE(is_lack_of_memory(std::runtime_error("could not create an engine")));    // likewise
  EXPECT_TRUE(is_lack_of_memory(std::runtime_error("DefaultCPUAllocator: can't allocate memory")));
}

TEST(LackOfMemory, IsNothingElse) {
  EXPECT_FALSE(is_lack_of_memory(std::system_error(ECONNREFUSED, std::generic_category())));
  EXPECT_FALSE(is_lack_of_memory(std::runtime_error("Connection reset by peer")));
  // Of a socket's call it means: not yet.
  EXPECT_FALSE(is_lack_of_memory(std::runtime_error(std::string("recv: ") + std::strerror(EAGAIN))));
}

}  // namespace
}  // namespace fsdp
