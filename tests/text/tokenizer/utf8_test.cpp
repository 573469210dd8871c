#include "text/unicode/utf8.h"

#include <gtest/gtest.h>

namespace fsdp::tokenizer {
namespace {

constexpr const char* kBad = "\xEF\xBF\xBD";

TEST(Utf8, ValidTextIsUnchanged) {
  const std::string text = "plain \xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80 \xED\x9F\xBF \xEE\x80\x80 \xF4\x8F\xBF\xBF";
  EXPECT_EQ(to_valid_utf8(text), text);
}

TEST(Utf8, WhatIsBrokenIsReplaced) {
  EXPECT_EQ(to_valid_utf8("a\xFFz"), std::string("a") + kBad + "z");
  EXPECT_EQ(to_valid_utf8("\xC3"), kBad);
  EXPECT_EQ(to_valid_utf8("\xE2\x82"), kBad);
  EXPECT_EQ(to_valid_utf8("\xC3z"), std::string(kBad) + "z");
  EXPECT_EQ(to_valid_utf8("\xC3\xC3\xA4"), std::string(kBad) + "\xC3\xA4");
  EXPECT_EQ(to_valid_utf8("\x80"), kBad);
  for (const char* overlong : {"\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80"}) {
    EXPECT_EQ(to_valid_utf8(overlong).find_first_not_of(kBad), std::string::npos) << overlong;
  }
}

TEST(Utf8, IncompleteCharactersAreHeldBack) {
  Utf8Repair repair;
  std::string text;
  repair.push("\xE2", text);
  repair.push("\x82", text);
  EXPECT_EQ(text, "");
  repair.push("\xAC", text);
  EXPECT_EQ(text, "\xE2\x82\xAC");
  repair.push("x\xC3", text);
  EXPECT_EQ(text, "\xE2\x82\xACx");
  repair.finish(text);
  EXPECT_EQ(text, std::string("\xE2\x82\xACx") + kBad);
}

}  // namespace
}  // namespace fsdp::tokenizer
