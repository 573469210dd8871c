#include "train/config/output_folder.h"

#include <gtest/gtest.h>

#include <fstream>

#include "fsdp/base/error.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

class OutputFolderTest : public ::testing::Test {
 protected:
  void put(const std::string& name) {
    const fs::path path = folder_.path() / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "x";
  }
  std::string check(const std::string& resume, const std::string& overwrite) {
    Config config;
    config.checkpoint.resume = resume;
    config.output.overwrite = overwrite;
    try {
      return check_output({folder_.path()}, config) == OutputUse::kReplace ? "replace" : "continue";
    } catch (const Error& error) {
      return error.what();
    }
  }
  void expect_kept(const std::string& name) {
    for (const auto& [resume, overwrite] : {std::pair("auto", "refuse"), std::pair("never", "replace")}) {
      const std::string answer = check(resume, overwrite);
      EXPECT_NE(answer.find("is no run's: it has '" + name + "'"), std::string::npos) << resume << ": " << answer;
    }
  }

  io::TemporaryFolder folder_;
};

TEST_F(OutputFolderTest, WhatARunLeftIsReplaced) {
  put("checkpoints/.step-3.tmp-ab/part");
  put("checkpoints/latest");
  put("checkpoints/.latest.tmp");
  EXPECT_EQ(check("auto", "refuse"), "replace");
  put("model/config.json");
  put("model/model.safetensors");
  EXPECT_EQ(check("never", "replace"), "replace");
  fs::create_directories(folder_.path() / "checkpoints/step-7");
  EXPECT_EQ(check("auto", "refuse"), "continue");
}

TEST_F(OutputFolderTest, WhoeverTakesItLearnsWhatToDoWithIt) {
  Config config;
  config.checkpoint.resume = "auto";
  EXPECT_EQ(take_output({folder_.path()}, config).use, OutputUse::kReplace);
  fs::create_directories(folder_.path() / "checkpoints/step-7");
  const TakenOutput taken = take_output({folder_.path()}, config);
  EXPECT_EQ(taken.use, OutputUse::kContinue);
  EXPECT_THROW(take_output({folder_.path()}, config), std::exception) << "while it is taken";
}

TEST_F(OutputFolderTest, NothingIsReplacedForACheckpointThatIsNone) {
  put("model/config.json");
  put("other/manifest.json");
  EXPECT_NE(check("true", "replace").find("got 'true', where there is nothing, expected auto, never or"),
            std::string::npos);
  const std::string damaged = check(folder_.path() / "other", "replace");
  EXPECT_NE(damaged.find("which is no checkpoint"), std::string::npos) << damaged;
}

TEST_F(OutputFolderTest, CheckpointsOfOthersStay) {
  put("checkpoints/epoch-3.pt");
  expect_kept("epoch-3.pt");
}

TEST_F(OutputFolderTest, AFolderModelOfOthersStays) {
  put("model/net/weights.bin");
  const std::string answer = check("never", "replace");
  EXPECT_NE(answer.find("it has 'net'"), std::string::npos) << answer;
  fs::remove_all(folder_.path() / "model");
  put("model/net.cpp");
  EXPECT_NE(check("never", "replace").find("no config.json"), std::string::npos);
}

}  // namespace
}  // namespace fsdp::train
