// A small data set and a run file. What all tests of a suite begin with is made once; each test gets a copy.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/app/command.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::app {

class TrainingFixture : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    suite_ = std::make_unique<io::TemporaryFolder>();
    std::filesystem::create_directory(*suite_ / "text");
    for (int file = 0; file < 12; ++file) {
      std::ofstream stream(*suite_ / ("text/" + std::to_string(file) + ".txt"));
      for (int line = 0; line < 40 + 7 * file; ++line) {
        stream << "line " << line * (file + 3) % 17 << " of file " << file << ";\n";
      }
    }
    run_for_all("prepare " + suite_path("text") + " -o " + suite_path("data") + " --holdout 2");
    write_run_file(*suite_);
  }
  static void TearDownTestSuite() { suite_.reset(); }
  void SetUp() override {
    std::filesystem::copy(suite_->path(), folder_.path(),
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
    write_run_file(folder_);
  }

  // For suites that add to what all of their tests begin with. Returns what the command printed.
  static std::string run_for_all(const std::string& arguments) {
    const CommandResult result = run_fsdp(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out + result.err;
  }
  static std::string suite_path(const std::string& name) { return *suite_ / name; }

  std::string path(const std::string& name) const { return folder_ / name; }
  std::string train(const std::string& more = "") const { return "train " + path("run.toml") + " " + more; }

  io::TemporaryFolder folder_;

 private:
  static void write_run_file(const io::TemporaryFolder& folder) {
    std::ofstream(folder / "run.toml")
        << "[model]\nhidden_size = 32\nlayers = 4\nheads = 4\nkv_heads = 2\nffn_size = 48\n"
        << "[data]\npath = \"" << (folder / "data").native() << "\"\nsequence_length = 32\n"
        << "[train]\nsteps = 6\nbatch_sequences = 8\nwarmup_steps = 2\nlog_every = 1\n"
        << "lr = 3e-3\npeak_tflops = 1\n[output]\nfolder = \"" << (folder / "out").native() << "\"\n";
  }

  static inline std::unique_ptr<io::TemporaryFolder> suite_;
};

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

using Lines = std::vector<nlohmann::json>;

// Of a file with an object a line.
inline Lines read_lines(const std::string& path) {
  std::ifstream file(path);
  Lines lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace fsdp::app
