// A small data set and a run file, made once per test.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/app/command.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::app {

class TrainingFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_ / "text");
    for (int file = 0; file < 12; ++file) {
      std::ofstream stream(folder_ / ("text/" + std::to_string(file) + ".txt"));
      for (int line = 0; line < 40 + 7 * file; ++line) {
        stream << "line " << line * (file + 3) % 17 << " of file " << file << ";\n";
      }
    }
    const CommandResult result = run_fsdp("prepare " + path("text") + " -o " + path("data") + " --holdout 2");
    ASSERT_EQ(result.exit_code, 0) << result.err;
    std::ofstream(folder_ / "run.toml")
        << "[model]\nhidden_size = 32\nlayers = 4\nheads = 4\nkv_heads = 2\nffn_size = 48\n"
        << "[data]\npath = \"" << path("data") << "\"\nsequence_length = 32\n"
        << "[train]\nsteps = 6\nbatch_sequences = 8\nwarmup_steps = 2\nlog_every = 1\n"
        << "lr = 3e-3\npeak_tflops = 1\n[output]\nfolder = \"" << path("out") << "\"\n";
  }
  std::string path(const std::string& name) const { return folder_ / name; }
  std::string train(const std::string& more = "") const { return "train " + path("run.toml") + " " + more; }

  io::TemporaryFolder folder_;
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
