// A base that was trained a little, for fine-tunings to start from.
#pragma once

#include <string>

#include "tests/app/training_fixture.h"

namespace fsdp::app {

class TuningFixture : public TrainingFixture {
 protected:
  static void SetUpTestSuite() {
    TrainingFixture::SetUpTestSuite();
    run_for_all("train " + suite_path("run.toml") + " --train.steps=30 --output.folder=" + suite_path("base"));
  }
  std::string base() const { return path("base") + "/model"; }
};

}  // namespace fsdp::app
