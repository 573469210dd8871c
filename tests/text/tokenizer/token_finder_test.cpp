// Texts found in others, held against the definition.
#include "text/tokenizer/stages/token_finder.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/usage.h"

namespace fsdp::tokenizer {
namespace {

using Needles = std::vector<TokenFinder::Needle>;

std::string found(const TokenFinder& finder, std::string_view text, size_t from = 0) {
  const auto match = finder.find(text, from);
  if (!match) return "nothing";
  return std::to_string(match->first) + "-" + std::to_string(match->end) + ":" + std::to_string(match->value);
}

// The leftmost, and there the longest; of equal ones the last.
std::string defined(const Needles& needles, std::string_view text, size_t from) {
  for (size_t first = from; first < text.size(); ++first) {
    const TokenFinder::Needle* best = nullptr;
    for (const TokenFinder::Needle& needle : needles) {
      const bool fits = text.substr(first).starts_with(needle.text);
      if (fits && (best == nullptr || needle.text.size() >= best->text.size())) best = &needle;
    }
    if (best != nullptr) {
      return std::to_string(first) + "-" + std::to_string(first + best->text.size()) + ":" +
             std::to_string(best->value);
    }
  }
  return "nothing";
}

TEST(TokenFinder, LeftmostAndThereTheLongest) {
  const TokenFinder finder({{"<s>", 0}, {"<s", 1}, {"<sep>", 2}, {"\xff", 3}, {"<s>", 4}});
  EXPECT_EQ(found(finder, "a<s>b"), "1-4:4");
  EXPECT_EQ(found(finder, "a<sep"), "1-3:1");
  EXPECT_EQ(found(finder, "<sep>"), "0-5:2");
  EXPECT_EQ(found(finder, "<s>", 1), "nothing");
  EXPECT_EQ(found(finder, "a\xff"), "1-2:3");
  EXPECT_EQ(found(TokenFinder(), "a"), "nothing");
  EXPECT_TRUE(TokenFinder().is_empty());
}

TEST(TokenFinder, IsWhatItsDefinitionSays) {
  std::mt19937 random(7);
  const auto text_of = [&](size_t most) {
    std::string text;
    for (size_t i = 1 + random() % most; i > 0; --i) text += "ab\xc3"[random() % 3];
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    Needles needles;
    for (int32_t i = 0; i < static_cast<int32_t>(1 + random() % 6); ++i) needles.push_back({text_of(4), i});
    const TokenFinder finder(needles);
    const std::string text = text_of(12);
    for (size_t from = 0; from <= text.size(); ++from)
      ASSERT_EQ(found(finder, text, from), defined(needles, text, from)) << text << " from " << from;
  }
}

TEST(TokenFinder, TakesHardlyMoreMemoryThanItsTexts) {
  constexpr size_t kBytes = size_t{4} << 20;
  const size_t before = usage::held_bytes();
  const TokenFinder finder({{std::string(kBytes, 'a') + "b", 0}, {std::string(kBytes, 'a') + "c", 1}});
  EXPECT_LT(usage::held_bytes() - before, 3 * kBytes);
  EXPECT_EQ(found(finder, std::string(kBytes, 'a') + "c"), "0-" + std::to_string(kBytes + 1) + ":1");
}

}  // namespace
}  // namespace fsdp::tokenizer
