#include "train/base/console.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "train/base/format.h"

namespace fsdp::train {
namespace {

// What a console with this sink writes for a status, a line and another status.
std::string written(Console::Sink sink) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  {
    Console console(sink, stream);
    console.status("one");
    console.line("kept");
    console.status("two");
  }
  std::fclose(stream);
  std::string result(text, size);
  free(text);
  return result;
}

TEST(Console, PlainSinkHasNoControlCharacters) { EXPECT_EQ(written(Console::Sink::kPlain), "one\nkept\ntwo\n"); }

TEST(Console, TerminalRedrawsTheStatus) {
  EXPECT_EQ(written(Console::Sink::kTerminal), "\r\x1b[Kone\r\x1b[Kkept\n\r\x1b[Ktwo\r\x1b[Ktwo\n");
}

TEST(Console, LauncherGetsCarriageReturns) { EXPECT_EQ(written(Console::Sink::kLauncher), "one\rkept\ntwo\rtwo\n"); }

TEST(Console, OtherRanksAreSilent) {
  EXPECT_EQ(written(Console::Sink::kSilent), "");
  EXPECT_EQ(Console::detect(stdout, 1), Console::Sink::kSilent);
}

TEST(Format, Numbers) {
  EXPECT_EQ(with_thousands(0), "0");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(with_thousands(41210), "41,210");
  EXPECT_EQ(with_thousands(-1234567), "-1,234,567");
  EXPECT_EQ(clock_text(2470), "00:41:10");
  EXPECT_EQ(clock_text(360000), "100:00:00");
  EXPECT_EQ(clock_text(-1), "00:00:00");
}

}  // namespace
}  // namespace fsdp::train
