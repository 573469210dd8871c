#include "train/byte_tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace fsdp::train {
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

TEST(Utf8, StreamHoldsBackIncompleteCharacters) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push(0x82), "");
  EXPECT_EQ(stream.push(0xAC), "\xE2\x82\xAC");
  EXPECT_EQ(stream.push('x'), "x");
  EXPECT_EQ(stream.finish(), "");
}

TEST(ByteTokenizer, MarkerIsJson) {
  const auto json = nlohmann::json::parse(byte_tokenizer::marker_json());
  EXPECT_EQ(json.at("vocab_size"), byte_tokenizer::kVocabSize);
  EXPECT_EQ(json.at("eos_token_id"), byte_tokenizer::kEnd);
}

}  // namespace
}  // namespace fsdp::train
