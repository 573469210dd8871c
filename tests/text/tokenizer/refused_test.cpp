// What would give other ids than Hugging Face's is an error that names the key.
#include <gtest/gtest.h>

#include "tests/text/tokenizer/tokenizer_files.h"

namespace fsdp::tokenizer {
namespace {

using Json = nlohmann::json;

void expect_refused(const Json& tokenizer, const std::string& part) {
  const TokenizerFolder folder;
  try {
    folder.load(tokenizer);
    ADD_FAILURE() << "loaded; expected: " << part;
  } catch (const io::Error& error) {
    EXPECT_EQ(error.kind(), io::ErrorKind::kModel);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

Json with(const char* pointer, const Json& value) {
  Json json = byte_level_json({{"a", "b"}});
  json[Json::json_pointer(pointer)] = value;
  return json;
}

Json split(const std::string& pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

TEST(TokenizerRefused, StagesThatAreNotSupported) {
  expect_refused(with("/model/type", "WordPiece"), "model.type: got the type 'WordPiece', expected BPE");
  expect_refused(with("/model/type", "Unigram"), "Unigram");
  expect_refused(with("/normalizer", {{"type", "Lowercase"}}), "normalizer: got the type 'Lowercase'");
  expect_refused(with("/pre_tokenizer", {{"type", "BertPreTokenizer"}}), "pre_tokenizer: got the type");
  expect_refused(
      with("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split("a"), {{"type", "Whitespace"}}}}}),
      "pre_tokenizer.pretokenizers[1]: got the type 'Whitespace'");
  expect_refused(with("/decoder", {{"type", "WordPiece"}}), "decoder: got the type");
  expect_refused(with("/post_processor", {{"type", "BertProcessing"}}), "post_processor: got the type");
}

TEST(TokenizerRefused, SettingsThatAreNotSupported) {
  expect_refused(with("/model/dropout", 0.1), "model.dropout: got '0.1'");
  expect_refused(with("/model/end_of_word_suffix", "</w>"), "model.end_of_word_suffix");
  expect_refused(with("/model/continuing_subword_prefix", "##"), "model.continuing_subword_prefix");
  expect_refused(with("/truncation", {{"max_length", 3}}), "truncation: got an object, expected null");
  expect_refused(with("/padding", Json::object()), "padding");
  expect_refused(with("/version", "2.0"), "version");
  expect_refused(with("/model/unk_token", "<unk>"), "model.unk_token");
}

// A few megabytes of text must not ask for gigabytes of ids.
TEST(TokenizerRefused, TemplatesThatRepeatManyIds) {
  const Json piece = {{"SpecialToken", {{"id", "s"}, {"type_id", 0}}}};
  Json single = Json::array();
  for (int i = 0; i < 200; ++i) single.push_back(piece);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  const Json special = {
      {"s", {{"id", "s"}, {"ids", std::vector<int>(100, 1)}, {"tokens", std::vector<std::string>(100, "a")}}}};
  expect_refused(
      with("/post_processor",
           {{"type", "TemplateProcessing"}, {"single", single}, {"pair", Json::array()}, {"special_tokens", special}}),
      "more than 1000 ids around a text");
}

TEST(TokenizerRefused, PatternsThatOtherEnginesReadDifferently) {
  for (const char* pattern : {"\\w+", "\\bx", "\\h", "a{1,2}+", "[a&&b]", "[[:alpha:]]", "(?i:straSSe)", "(?m:a)", "^a",
                              "x*", "(", "\\p{Script=Han}", "\\K", "(?<n>a)", "a{,3}"}) {
    expect_refused(with("/pre_tokenizer", split(pattern)), "pre_tokenizer.pattern.");
  }
}

TEST(TokenizerRefused, VocabulariesAndMergesThatDoNotFit) {
  expect_refused(with("/model/vocab/new", -1), "the id '-1' of 'new'");
  expect_refused(with("/model/vocab/new", 2'000'000'000), "the id '2000000000'");
  expect_refused(with("/model/vocab/new", 5), "the id 5 twice");
  expect_refused(with("/model/merges", Json::array({"a c"})), "'ac' at 0, which the vocabulary does not have");
  expect_refused(with("/model/merges", Json::array({"a b c"})), "model.merges");
  expect_refused(with("/model/merges", Json::array({Json::array({"a"})})), "model.merges");
  expect_refused(with("/model/vocab", Json::array()), "model.vocab: got array, expected an object");
  expect_refused(with("/model/vocab", nullptr), "no 'vocab'");
  expect_refused(with("/added_tokens", Json::array({added_token(300, "<x>")})),
                 "added_tokens[0].id: got 300, expected 257");
}

TEST(TokenizerRefused, AddedTokensThatAreATextOfTheirOwn) {
  Json tokens = Json::array();
  for (int64_t i = 0; i <= 4096; ++i) {
    const std::string number = std::to_string(i);
    tokens.push_back(added_token(257 + i, number + std::string(4096 - number.size(), 'x')));
  }
  expect_refused(with("/added_tokens", tokens), "added_tokens: got tokens of over 16 MiB");
}

TEST(TokenizerRefused, FoldersWithoutATokenizer) {
  const TokenizerFolder folder;
  folder.write("tokenizer.model", "");
  try {
    Tokenizer::load(folder.path());
    FAIL() << "loaded";
  } catch (const io::Error& error) {
    EXPECT_NE(std::string(error.what()).find("tokenizer.model only"), std::string::npos) << error.what();
  }
  folder.write("tokenizer.json", "{\"model\": ");
  EXPECT_THROW(Tokenizer::load(folder.path()), io::Error);
  EXPECT_THROW(Tokenizer::load(folder.path() / "none"), io::Error);
}

}  // namespace
}  // namespace fsdp::tokenizer
