#include "train/generate/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

#include "fsdp/base/error.h"

namespace fsdp::train {
namespace {

TEST(StopStrings, EndsBeforeTheFirst) {
  StopStrings stop({"###", "\n\n"});
  EXPECT_EQ(stop.push("text"), "text");
  EXPECT_EQ(stop.push("\n"), "") << "may be the beginning of a stop string";
  EXPECT_EQ(stop.push("more #"), "\nmore ");
  EXPECT_EQ(stop.push("#"), "");
  EXPECT_EQ(stop.push("x##"), "##x");
  EXPECT_FALSE(stop.found());
  EXPECT_EQ(stop.push("# and then"), "");
  EXPECT_TRUE(stop.found());
  EXPECT_EQ(stop.push("some"), "");
  EXPECT_EQ(stop.finish(), "");
}

TEST(StopStrings, GivesBackWhatWasNone) {
  StopStrings stop({"stop"});
  EXPECT_EQ(stop.push("sto"), "");
  EXPECT_EQ(stop.finish(), "sto");
}

TEST(StopStrings, TheFirstToBeCompleteWins) {
  EXPECT_EQ(StopStrings({"cd", "b"}).push("abcd"), "a");
  EXPECT_EQ(StopStrings({"abcd", "c"}).push("abcd"), "ab");
}

TEST(StopStrings, NoneMeansNothingIsHeldBack) {
  StopStrings stop({});
  EXPECT_EQ(stop.push("abc"), "abc");
  EXPECT_FALSE(stop.found());
}

TEST(StopStrings, EmptyOnesAreRefused) { EXPECT_THROW(StopStrings({"a", ""}), Error); }

// Against a search in ever longer text.
TEST(StopStrings, AnyCutOfAnyText) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto text_of = [&](size_t length) {
      std::string text;
      while (text.size() < length) text += static_cast<char>('a' + random() % 2);
      return text;
    };
    const std::string text = text_of(30);
    const std::vector<std::string> strings = {text_of(1 + random() % 6), text_of(2 + random() % 6)};
    StopStrings stop(strings);
    std::string got;
    for (size_t begin = 0, length = 0; begin < text.size(); begin += length) {
      length = 1 + random() % 4;
      got += stop.push(text.substr(begin, length));
    }
    got += stop.finish();
    size_t first = std::string::npos;
    for (size_t length = 0; length <= text.size() && first == std::string::npos; ++length)
      first = std::min(text.substr(0, length).find(strings[0]), text.substr(0, length).find(strings[1]));
    EXPECT_EQ(stop.found(), first != std::string::npos);
    EXPECT_EQ(got, text.substr(0, first));
  }
}

}  // namespace
}  // namespace fsdp::train
