#include <gtest/gtest.h>

#include "train/base/leave.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  fsdp::train::leave(RUN_ALL_TESTS());
}
