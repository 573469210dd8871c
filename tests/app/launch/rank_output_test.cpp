#include "app/launch/rank_output.h"

#include <gtest/gtest.h>
#include <cstdlib>

#include "tests/support/terminal.h"

namespace fsdp::app {
namespace {

using Stream = RankOutput::Stream;

class RankOutputTest : public ::testing::Test {
 public:
  RankOutputTest() : file_(open_memstream(&text_, &size_)) {}
  ~RankOutputTest() override {
    std::fclose(file_);
    free(text_);
  }
  RankOutput make(OutputStyle style) { return RankOutput(2, style, file_, file_); }
  std::string text() {
    std::fflush(file_);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* file_;
};

TEST_F(RankOutputTest, LinesAreWholeAndNamed) {
  RankOutput output = make({});
  output.feed(0, Stream::kOut, "ze");
  output.feed(1, Stream::kOut, "one\ntw");
  output.feed(0, Stream::kOut, "ro\n");
  output.feed(1, Stream::kErr, "error\n");
  output.finish(1);
  EXPECT_EQ(text(), "[1] one\n[0] zero\n[1] error\n[1] tw\n");
}

TEST_F(RankOutputTest, WithoutPrefix) {
  RankOutput output = make({.prefix = false, .draws_status = false});
  output.feed(1, Stream::kOut, "x\n");
  EXPECT_EQ(text(), "x\n");
}

TEST_F(RankOutputTest, StatusLineStaysBelow) {
  RankOutput output = make({.prefix = true, .draws_status = true});
  output.feed(0, Stream::kOut, "step 1\r");
  output.feed(1, Stream::kOut, "hello\n");
  output.feed(0, Stream::kOut, "step 2\r");
  output.finish(0);
  EXPECT_EQ(text(), "\r\x1b[K[0] step 1\r\x1b[K[1] hello\n[0] step 1\r\x1b[K[0] step 2\n");
}

// A line that wraps could not be erased.
TEST(RankOutputOnATerminal, TheStatusLineIsCutToItsWidth) {
  for (const unsigned short columns : {80, 120}) {
    const testing::Terminal terminal(columns);
    {
      RankOutput output(2, {.prefix = true, .draws_status = true}, terminal.stream(), terminal.stream());
      output.feed(0, Stream::kOut, std::string(200, 's') + "\r");
    }
    EXPECT_EQ(terminal.text(), "\r\x1b[K[0] " + std::string(columns - 1U - 4U, 's'));
  }
}

TEST_F(RankOutputTest, StatusIsALineWhereNothingIsDrawn) {
  RankOutput output = make({});
  output.feed(0, Stream::kOut, "step 1\r");
  EXPECT_EQ(text(), "[0] step 1\n");
}

TEST_F(RankOutputTest, TheSameErrorAppearsOnce) {
  RankOutput output = make({});
  for (const int rank : {1, 0}) {
    output.feed(rank, Stream::kErr, "fsdp: no data\nother\n");
  }
  EXPECT_EQ(text(), "[1] fsdp: no data\n[1] other\n[0] other\n");
}

TEST_F(RankOutputTest, KeepsTheLastLines) {
  RankOutput output = make({});
  for (int i = 0; i < 20; ++i) {
    output.feed(1, Stream::kErr, std::to_string(i) + "\n");
  }
  const auto lines = output.last_lines(1, Stream::kErr);
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines.back(), "19");
  EXPECT_TRUE(output.last_lines(0, Stream::kErr).empty());
}

TEST_F(RankOutputTest, EndlessLineIsPrintedInPieces) {
  RankOutput output = make({});
  output.feed(0, Stream::kOut, std::string(200000, 'x'));
  EXPECT_GT(text().size(), 100000u);
}

}  // namespace
}  // namespace fsdp::app
