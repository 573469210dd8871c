#include "train/base/line_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/io/temporary_folder.h"

namespace fsdp::train {
namespace {

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

const std::vector<std::string> kLines = {R"({"step":1,"loss":3})", R"({"step":2})", R"({"step":2,"heldout":{}})",
                                         R"({"step":2,"prompt":""})", R"({"step":3})"};

TEST(LineFile, WritesWholeLines) {
  const io::TemporaryFolder folder;
  const std::filesystem::path path = folder / "metrics.jsonl";
  LineFile file(path, -1);
  for (const std::string& line : kLines) file.append(line);
  file.sync();
  EXPECT_EQ(lines_of(path), kLines);
}

TEST(LineFile, StartsAnewOrGoesOn) {
  const io::TemporaryFolder folder;
  const std::filesystem::path path = folder / "metrics.jsonl";
  const auto fill = [&] {
    std::ofstream file(path);
    for (const std::string& line : kLines) file << line << "\n";
    file << R"({"step":2,"torn)";  // as a process that died left it
  };
  fill();
  LineFile resumed(path, 2);
  EXPECT_EQ(lines_of(path), std::vector<std::string>(kLines.begin(), kLines.begin() + 2));
  resumed.append(R"({"step":3,"again":true})");
  EXPECT_EQ(lines_of(path).back(), R"({"step":3,"again":true})");
  resumed.go_back_to(1);
  EXPECT_EQ(lines_of(path), std::vector<std::string>({kLines[0]}));
  fill();
  const LineFile anew(path, -1);
  EXPECT_TRUE(lines_of(path).empty());
}

}  // namespace
}  // namespace fsdp::train
