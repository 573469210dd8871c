#include "app/progress/progress_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "app/progress/watched_source.h"
#include "tests/support/terminal.h"

namespace fsdp::app {
namespace {

using train::Console;

constexpr ProgressLine::Clock::duration kAlways{0};
constexpr ProgressLine::Clock::duration kNever = std::chrono::hours(1);

TEST(ProgressLineTest, SaysHowFarAndHowLong) {
  EXPECT_EQ(transfer_line("verify", 3 << 20, 12 << 20, 2),
            "verify [#####...............]  25% | eta 00:00:06 | 3.0 MiB of 12.0 MiB | 1.5 MiB/s");
  EXPECT_EQ(transfer_line("import", 7, 7, 0.5),
            "import [####################] 100% | eta 00:00:00 | 7 B of 7 B | 14 B/s");
  EXPECT_EQ(transfer_line("import", 0, 7, 1), "import [....................]   0% | eta 00:00:00 | 0 B of 7 B | 0 B/s");
}

TEST(ProgressLineTest, IsDrawnInPlaceCutToTheTerminalAndTakenOff) {
  for (const unsigned short columns : {40, 80, 120}) {
    const testing::Terminal terminal(columns);
    Console console(Console::detect(terminal.stream(), 0), terminal.stream());
    {
      ProgressLine progress(console, "export", 1 << 20, kAlways);
      progress.add(1 << 18);
      progress.add(1 << 18);
    }
    console.line("done");
    const std::string text = terminal.text();
    const std::string line = "(export \\[[#.]*\\]?[^\r\n]*)";
    std::smatch found;
    ASSERT_TRUE(
        std::regex_match(text, found, std::regex("\r\x1b\\[K" + line + "\r\x1b\\[K" + line + "\r\x1b\\[Kdone\r\n")))
        << text;
    for (const size_t group : {1U, 2U}) EXPECT_LT(found[group].length(), columns) << text;
    EXPECT_EQ(found[1].str().rfind("export [#####.", 0), 0U) << text;
    EXPECT_EQ(found[2].str().rfind("export [##########.", 0), 0U) << text;
  }
}

TEST(ProgressLineTest, IsLinesInAFileAndNothingForWhatIsOverAtOnce) {
  for (const auto every : {kAlways, kNever}) {
    char* text = nullptr;
    size_t size = 0;
    std::FILE* file = open_memstream(&text, &size);
    {
      Console console(Console::Sink::kPlain, file);
      ProgressLine progress(console, "export", 4, every);
      for (int i = 0; i < 4; ++i) progress.add(1);
    }
    std::fclose(file);
    const std::string lines(text, size);
    free(text);
    EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), every == kAlways ? 4 : 0) << lines;
    EXPECT_EQ(lines.find_first_of("\r\x1b"), std::string::npos) << lines;
  }
}

// Three numbers of 4 bytes and five of 2, in pieces.
class SmallSource : public io::WeightSource {
 public:
  SmallSource() : io::WeightSource("small") {
    description_ = "small source";
    tensors_ = {{"a", {3}, io::DType::F32, "F32"}, {"b", {5}, io::DType::BF16, "BF16"}};
  }
  void read(const std::vector<size_t>& wanted, const io::PieceSink& sink) const override {
    for (const size_t tensor : wanted) {
      for (int64_t i = 0; i < tensors_[tensor].numel(); ++i) sink(tensor, i, 1, &i);
    }
  }
};

TEST(ProgressLineTest, AWatchedSourceIsTheSourceAndCounts) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* file = open_memstream(&text, &size);
  const SmallSource source;
  std::vector<std::pair<size_t, int64_t>> pieces;
  {
    Console console(Console::Sink::kPlain, file);
    ProgressLine progress(console, "import", 22, kAlways);
    const WatchedSource watched(source, progress);
    EXPECT_EQ(watched.description(), "small source");
    EXPECT_EQ(watched.tensors().size(), 2U);
    watched.read({1, 0}, [&](size_t tensor, int64_t first, int64_t count, const void*) {
      EXPECT_EQ(count, 1);
      pieces.emplace_back(tensor, first);
    });
  }
  std::fclose(file);
  const std::string lines(text, size);
  free(text);
  EXPECT_EQ(pieces,
            (std::vector<std::pair<size_t, int64_t>>{{1, 0}, {1, 1}, {1, 2}, {1, 3}, {1, 4}, {0, 0}, {0, 1}, {0, 2}}));
  EXPECT_NE(lines.rfind("| 22 B of 22 B"), std::string::npos) << lines;
}

}  // namespace
}  // namespace fsdp::app
