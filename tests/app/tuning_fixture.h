// A base that was trained a little, for fine-tunings to start from.
#pragma once

#include <string>

#include "tests/app/training_fixture.h"

namespace fsdp::app {

class TuningFixture : public TrainingFixture {
 protected:
  void SetUp() override {
    TrainingFixture::SetUp();
    const CommandResult result = run_fsdp(train("--train.steps=30 --output.folder=" + path("base")));
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  std::string base() const { return path("base") + "/model"; }
};

}  // namespace fsdp::app
