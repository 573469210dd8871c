// Parts of the tokenizer against slow and obvious ones.
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <random>

#include "text/tokenizer/bpe.h"
#include "text/unicode/regex.h"
#include "text/unicode/unicode.h"
#include "text/unicode/unicode_ranges.h"
#include "text/unicode/word_patterns.h"

namespace fsdp::tokenizer {
namespace {

constexpr uint32_t kSeed = 20;

// A random vocabulary over four letters: merges of tokens that exist already, each pair once.
struct RandomModel {
  Vocabulary vocabulary = {{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}};
  std::vector<std::pair<std::string, std::string>> merges;

  RandomModel(std::mt19937& random, size_t num_merges) {
    std::vector<std::string> tokens = {"a", "b", "c", "d"};
    while (merges.size() < num_merges) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      if (std::find(merges.begin(), merges.end(), std::pair(left, right)) != merges.end()) continue;
      merges.emplace_back(left, right);
      if (vocabulary.try_emplace(left + right, static_cast<int32_t>(vocabulary.size())).second) {
        tokens.push_back(left + right);
      }
    }
    std::shuffle(merges.begin(), merges.end(), random);
  }

  Bpe make() const {
    PairTable table(merges.size());
    for (size_t i = 0; i < merges.size(); ++i) {
      table.insert(vocabulary.at(merges[i].first), vocabulary.at(merges[i].second),
                   {static_cast<uint32_t>(i), vocabulary.at(merges[i].first + merges[i].second)});
    }
    return Bpe(vocabulary, std::move(table), {});
  }

  // The definition: the first merge of the list that fits anywhere, at its first place; again, until none fits.
  std::vector<int32_t> encode(const std::string& word) const {
    std::vector<std::string> parts;
    for (const char c : word) parts.emplace_back(1, c);
    const auto merge_once = [&] {
      for (const auto& [left, right] : merges) {
        for (size_t i = 0; i + 1 < parts.size(); ++i) {
          if (parts[i] != left || parts[i + 1] != right) continue;
          parts[i] += right;
          parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1);
          return true;
        }
      }
      return false;
    };
    while (merge_once()) {
    }
    std::vector<int32_t> ids;
    for (const std::string& part : parts) ids.push_back(vocabulary.at(part));
    return ids;
  }
};

TEST(TokenizerReference, MergesByDefinition) {
  std::mt19937 random(kSeed);
  BpeScratch scratch;
  for (int round = 0; round < 40; ++round) {
    const RandomModel model(random, 1 + random() % 30);
    const Bpe bpe = model.make();
    scratch = BpeScratch();
    for (int i = 0; i < 40; ++i) {
      std::string word(1 + random() % (i < 30 ? 20 : 150), 'a');  // longer ones take the heap
      for (char& c : word) c = static_cast<char>('a' + random() % 4);
      for (int again = 0; again < 2; ++again) {  // the second time from the cache
        std::vector<int32_t> ids;
        bpe.encode(word, scratch, ids);
        ASSERT_EQ(ids, model.encode(word)) << word << " seed " << kSeed << " round " << round;
      }
    }
  }
}

std::string random_text(std::mt19937& random, const std::vector<char32_t>& some) {
  std::string text;
  const size_t length = 1 + random() % 40;
  for (size_t i = 0; i < length; ++i) {
    char32_t value = some[random() % some.size()];
    if (random() % 8 == 0) value = random() % 0x530;  // old ones: all versions of Unicode agree
    append_utf8(value, text);
  }
  return text;
}

TEST(TokenizerReference, PatternsMatchAsARegexEngineDoes) {
  std::mt19937 random(kSeed);
  const std::vector<char32_t> some = {' ',  ' ',    '\n',  '\r', '\t',  '\'', 's',    'S',   'l',    'L',    'r',
                                      'e',  'E',    'v',   't',  'd',   'M',  '1',    '2',   '.',    ',',    0x85,
                                      0xA0, 0x2028, 0x17F, 0xE9, 0x301, 0xBD, 0x4E00, 0x663, 0x200B, 0x180E, 0x1F600};
  for (const WordPattern pattern : {WordPattern::kGpt2, WordPattern::kLlama3, WordPattern::kQwen2}) {
    const Regex regex(std::string(regex_of(pattern)), "test");
    for (int i = 0; i < 5000; ++i) {
      const std::string text = random_text(random, some);
      for (size_t at = 0; at < text.size();) {
        const auto expected = regex.find(text, at);
        ASSERT_TRUE(expected && expected->first == at);
        const size_t length = match_word(pattern, text.data() + at, text.data() + text.size());
        ASSERT_EQ(length, expected->end - at) << testing::PrintToString(text) << " at " << at << " seed " << kSeed;
        at += length;
      }
    }
  }
}

std::string nfc_of_the_whole(const std::string& text) {
  utf8proc_uint8_t* result = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
  std::string normal(reinterpret_cast<const char*>(result));
  std::free(result);
  return normal;
}

TEST(TokenizerReference, NormalFormCPieceByPiece) {
  std::mt19937 random(kSeed);
  std::vector<char32_t> some = {'a',    'e',    'A',    'o',   ' ',   0x212B, 0xC5, 0x1100,
                                0x1161, 0x11A8, 0xAC00, 0x9C7, 0x9BE, 0xFB1D, 0x958};
  for (char32_t value = 0x300; value < 0x345; ++value) some.push_back(value);
  for (int i = 0; i < 20'000; ++i) {
    std::string text = random_text(random, some);
    // Characters of later versions of Unicode stay on purpose.
    bool is_new = false;
    for (size_t at = 0; at < text.size(); at += length_of(text[at])) {
      for (const CodePointRange& range : unicode_ranges::unnormalized()) {
        const char32_t value = decode_at(text.data() + at).value;
        is_new = is_new || (value >= range.first && value <= range.last) || value == 0;
      }
    }
    if (is_new) continue;
    std::string normal;
    append_nfc(text, normal);
    ASSERT_EQ(normal, nfc_of_the_whole(text)) << testing::PrintToString(text) << " seed " << kSeed;
    if (is_nfc(text)) {
      ASSERT_EQ(normal, text);
    }
  }
}

TEST(TokenizerReference, ManyMarksInARowAreNotSlow) {
  std::string text = "a";
  for (int i = 0; i < 100'000; ++i) text += i % 2 == 0 ? "\xCC\x81" : "\xCC\xA3";  // above, below: to be sorted
  std::string normal;
  append_nfc(text, normal);
  EXPECT_EQ(normal.substr(0, 5), "\xE1\xBA\xA1\xCC\xA3") << "a with a dot below, then the other dots";
  EXPECT_EQ(normal.size(), text.size());
}

}  // namespace
}  // namespace fsdp::tokenizer
