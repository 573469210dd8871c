#include "train/base/terminal_text.h"

#include <gtest/gtest.h>

#include <random>

namespace fsdp::train::terminal_text_test {
namespace {

TEST(TerminalText, KeepsTextAndEscapesWhatATerminalObeys) {
  EXPECT_EQ(for_terminal(""), "");
  EXPECT_EQ(for_terminal("a b\tc\nd 'e' \\"), "a b\tc\nd 'e' \\");
  EXPECT_EQ(for_terminal("Gr\xc3\xbc\xc3\x9f"
                         "e \xe2\x82\xac \xf0\x9f\x98\x80"),
            "Gr\xc3\xbc\xc3\x9f"
            "e \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(for_terminal("\x1b]0;title\x07"), "\\x1b]0;title\\x07");
  EXPECT_EQ(for_terminal("\r\b\x7f"), "\\x0d\\x08\\x7f");
  EXPECT_EQ(for_terminal(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(for_terminal("\xc2\x9b"
                         "2J"),
            "\\x9b2J");  // CSI as one character
  EXPECT_EQ(for_terminal("\x9b"
                         "2J"),
            "\\x9b2J");                                        // and as one byte
  EXPECT_EQ(for_terminal("\xe0\x82\x9b"), "\\xe0\\x82\\x9b");  // and as more bytes than it needs
  EXPECT_EQ(for_terminal("\xe2\x82"), "\\xe2\\x82");           // half a character
}

TEST(TerminalText, OfAnyBytesHasNoControlCharacter) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 20000; ++i) {
    std::string text(random() % 12, ' ');
    for (char& c : text) c = static_cast<char>(random());
    const std::string shown = for_terminal(text);
    for (size_t at = 0; at < shown.size(); ++at) {
      const auto byte = static_cast<unsigned char>(shown[at]);
      ASSERT_TRUE((byte >= 0x20 && byte != 0x7f) || byte == '\n' || byte == '\t') << shown;
      // A byte of the C1 range follows one that begins a character, which is not U+0080 to U+009F.
      if (byte >= 0x80 && byte < 0xa0) {
        ASSERT_GT(at, 0U);
        ASSERT_GE(static_cast<unsigned char>(shown[at - 1]), 0x80U);
        ASSERT_NE(static_cast<unsigned char>(shown[at - 1]), 0xc2U);
      }
    }
    EXPECT_EQ(for_terminal(shown), shown);
  }
}

}  // namespace
}  // namespace fsdp::train::terminal_text_test
