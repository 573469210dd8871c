// What a plan says of what it does not take; the user has to change it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "io/base/error.h"

namespace fsdp::plan {

inline std::string complaint(const std::function<void()>& call) {
  try {
    call();
  } catch (const io::Error& error) {
    EXPECT_EQ(error.kind(), io::ErrorKind::kUsage);
    return error.what();
  }
  return "no complaint";
}

}  // namespace fsdp::plan
