#include "fsdp/unit/deferred_error.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace fsdp {
namespace {

TEST(DeferredError, KeepsTheFirstAndThrowsItOnce) {
  DeferredError error;
  EXPECT_NO_THROW(error.rethrow());
  error.set(std::make_exception_ptr(std::runtime_error("first")));
  error.set(std::make_exception_ptr(std::runtime_error("second")));
  EXPECT_TRUE(error.present());
  try {
    error.rethrow();
    FAIL() << "nothing thrown";
  } catch (const std::runtime_error& caught) {
    EXPECT_STREQ(caught.what(), "first");
  }
  EXPECT_FALSE(error.present());
  EXPECT_NO_THROW(error.rethrow());
}

}  // namespace
}  // namespace fsdp
