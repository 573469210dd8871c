#include "text/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/text/tokenizer/tokenizer_files.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace fsdp::tokenizer {
namespace {

using Ids = std::vector<int32_t>;

const Merges kWords = {{"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {"\xC4\xA0", "w"}, {"1", "2"}};

TEST(TokenizerBytes, IdsAreBytes) {
  const Tokenizer bytes = Tokenizer::bytes();
  EXPECT_EQ(bytes.encode("a\xC3\xA4"), (Ids{'a', 0xC3, 0xA4}));
  EXPECT_EQ(bytes.encode("a", SpecialTokens::kAdd), (Ids{256, 'a'}));
  EXPECT_EQ(bytes.encode("<|end|>").size(), 7u) << "its special tokens are not text";
  EXPECT_EQ(bytes.encode("\xFF"), (Ids{0xFF})) << "any bytes";
  EXPECT_EQ(bytes.decode({256, 0xC3, 0xA4, 0xFF, 257}, SkipSpecial::kYes), "\xC3\xA4\xEF\xBF\xBD");
  EXPECT_EQ(bytes.decode({'a', 257, 9999, -1}), "a<|end|>");
  EXPECT_EQ(bytes.vocab_size(), 259);
  EXPECT_EQ(bytes.bos(), 256);
  EXPECT_EQ(bytes.eos(), 257);
  EXPECT_EQ(bytes.pad(), 258);
  EXPECT_EQ(bytes.name(), "bytes");
  EXPECT_TRUE(bytes.is_special(258));
  EXPECT_FALSE(bytes.is_special(255));
}

TEST(TokenizerBytes, FolderWithTheMarker) {
  const TokenizerFolder folder;
  folder.write("fsdp_tokenizer.json", train::byte_tokenizer::marker_json());
  EXPECT_EQ(Tokenizer::load(folder.path()).hash(), Tokenizer::bytes().hash());
  folder.write("fsdp_tokenizer.json", "{\"type\": \"words\"}");
  EXPECT_THROW(Tokenizer::load(folder.path()), io::Error);
}

TEST(TokenizerBpe, MergesInOrderOfRank) {
  const TokenizerFolder folder;
  const Tokenizer tokenizer = folder.load(byte_level_json(kWords));
  EXPECT_EQ(tokenizer.encode("hello w"), (Ids{259, 260}));
  EXPECT_EQ(tokenizer.encode("hell"), (Ids{258}));
  EXPECT_EQ(tokenizer.encode("hel"), (Ids{256, 'l'}));
  EXPECT_EQ(tokenizer.decode({259, 260, 256}), "hello whe");
  EXPECT_EQ(tokenizer.vocab_size(), 262);
  EXPECT_EQ(tokenizer.id_of("hello"), 259);
  EXPECT_EQ(tokenizer.token(260), "\xC4\xA0w");
  EXPECT_EQ(tokenizer.id_of(" w"), std::nullopt) << "the vocabulary writes spaces otherwise";
  EXPECT_EQ(tokenizer.encode(""), Ids{});
}

TEST(TokenizerBpe, IgnoreMergesTakesWholeWords) {
  const TokenizerFolder folder;
  nlohmann::json json = byte_level_json(kWords);
  json["model"]["vocab"]["xyz"] = 262;
  EXPECT_EQ(folder.load(json).encode("xyz"), (Ids{'x', 'y', 'z'}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(folder.load(json).encode("xyz hello"), (Ids{262, ' ', 259}));
}

TEST(TokenizerBpe, UnknownCharacters) {
  const TokenizerFolder folder;
  nlohmann::json json = llama2_json(
      "\xE2\x96\x81"
      "ab",
      {{"a", "b"}});
  EXPECT_EQ(folder.load(json).encode("ab\xC3\xA4"), (Ids{259, 262, 3 + 0xC3, 3 + 0xA4})) << "as bytes";
  json["model"]["byte_fallback"] = false;
  EXPECT_EQ(folder.load(json).encode("xyab"), (Ids{259, 0, 262})) << "fused";
  json["model"]["fuse_unk"] = false;
  EXPECT_EQ(folder.load(json).encode("xyab"), (Ids{259, 0, 0, 262}));
  json["model"]["unk_token"] = nullptr;
  EXPECT_EQ(folder.load(json).encode("xyab"), (Ids{259, 262})) << "nothing stands for them";
}

TEST(TokenizerAdded, SpecialAndOthers) {
  const TokenizerFolder folder;
  nlohmann::json json = byte_level_json(kWords);
  json["added_tokens"] = {
      added_token(262, "<|end|>", {{"special", true}}),  added_token(263, "<tool>"),
      added_token(264, "<l>", {{"lstrip", true}}),       added_token(265, "<r>", {{"rstrip", true}}),
      added_token(266, "word", {{"single_word", true}}), added_token(267, "<|end|>>")};
  const Tokenizer tokenizer = folder.load(json);
  EXPECT_EQ(tokenizer.encode("he<|end|>he"), (Ids{256, 262, 256}));
  EXPECT_EQ(tokenizer.encode("<|end|>>"), (Ids{267})) << "the longest";
  EXPECT_EQ(tokenizer.encode("he \n<l> he"), (Ids{256, 264, ' ', 256}));
  EXPECT_EQ(tokenizer.encode("he <r>\xC2\xA0 he"), (Ids{256, ' ', 265, 256}));
  EXPECT_EQ(tokenizer.encode("word.").front(), 266);
  EXPECT_EQ(tokenizer.encode("words").size(), 5u);
  EXPECT_EQ(tokenizer.decode({256, 262, 263}), "he<|end|><tool>");
  EXPECT_EQ(tokenizer.decode({256, 262, 263}, SkipSpecial::kYes), "he<tool>");
  EXPECT_TRUE(tokenizer.is_special(262));
  EXPECT_FALSE(tokenizer.is_special(263));
  EXPECT_EQ(tokenizer.id_of("<tool>"), 263);
}

TEST(TokenizerTemplate, PutsIdsAroundTheText) {
  const TokenizerFolder folder;
  nlohmann::json json = byte_level_json(kWords);
  json["added_tokens"] = {added_token(262, "<s>", {{"special", true}}), added_token(263, "</s>", {{"special", true}})};
  const auto special = [](const char* name) -> nlohmann::json {
    return {{"SpecialToken", {{"id", name}, {"type_id", 0}}}};
  };
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {special("<s>"), {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, special("</s>")}},
      {"special_tokens", {{"<s>", {{"ids", {262}}}}, {"</s>", {{"ids", {263}}}}}}};
  const Tokenizer tokenizer = folder.load(json);
  EXPECT_EQ(tokenizer.encode("he", SpecialTokens::kAdd), (Ids{262, 256, 263}));
  EXPECT_EQ(tokenizer.encode("he"), (Ids{256}));
  Ids ids{7};
  tokenizer.encode("he", SpecialTokens::kAdd, ids);
  EXPECT_EQ(ids, (Ids{7, 262, 256, 263})) << "appends";
}

TEST(TokenizerConfig, SpecialTokensAndChatTemplate) {
  const TokenizerFolder folder;
  nlohmann::json json = byte_level_json(kWords);
  json["added_tokens"] = {added_token(262, "<s>"), added_token(263, "</s>")};
  const Tokenizer plain = folder.load(json);
  EXPECT_EQ(plain.bos(), std::nullopt);
  EXPECT_EQ(plain.chat_template(), "");
  folder.write("tokenizer_config.json", R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": null,
      "pad_token": "none", "chat_template": [{"name": "tool", "template": "no"}, {"name": "default", "template": "yes"}]})");
  folder.write("special_tokens_map.json", R"({"eos_token": "</s>", "bos_token": "</s>"})");
  const Tokenizer tokenizer = Tokenizer::load(folder.path() / "tokenizer.json");
  EXPECT_EQ(tokenizer.bos(), 262);
  EXPECT_EQ(tokenizer.eos(), 263) << "null says nothing";
  EXPECT_EQ(tokenizer.pad(), std::nullopt) << "no such token";
  EXPECT_EQ(tokenizer.chat_template(), "yes");
  EXPECT_NE(tokenizer.hash(), plain.hash());
  folder.write("chat_template.jinja", "{{ messages }}");
  EXPECT_EQ(Tokenizer::load(folder.path()).chat_template(), "{{ messages }}");
}

TEST(TokenizerText, ThatIsNotUtf8IsNamed) {
  const TokenizerFolder folder;
  const Tokenizer tokenizer = folder.load(byte_level_json(kWords));
  try {
    tokenizer.encode("hello \xC3(");
    FAIL() << "encoded";
  } catch (const io::Error& error) {
    EXPECT_EQ(error.kind(), io::ErrorKind::kData);
    EXPECT_NE(std::string(error.what()).find("offset 6"), std::string::npos) << error.what();
  }
}

TEST(TokenizerText, AMegabyteWithoutASpace) {
  const TokenizerFolder folder;
  const Tokenizer bytes = folder.load(byte_level_json({{"a", "a"}, {"aa", "aa"}, {"b", "a"}}));
  const std::string text(1'000'001, 'a');
  const Ids ids = bytes.encode(text);
  EXPECT_EQ(ids.size(), 250'001u);
  EXPECT_EQ(bytes.decode(ids), text);
  const Tokenizer characters =
      folder.load(llama2_json("\xE2\x96\x81"
                              "a",
                              {{"a", "a"}, {"aa", "aa"}}));
  EXPECT_EQ(characters.encode(text).size(), 250'002u);
}

TEST(TokenizerText, ThreadsShareATokenizer) {
  const TokenizerFolder folder;
  const Tokenizer tokenizer = folder.load(byte_level_json(kWords));
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "hello word" + std::to_string(i % 97) + " ";
  const Ids expected = tokenizer.encode(text);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& result : results) threads.emplace_back([&] { result = tokenizer.encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_EQ(result, expected);
}

TEST(TokenizerStream, NeverEndsInsideACharacter) {
  const TokenizerFolder folder;
  const Tokenizer tokenizer = folder.load(byte_level_json({{"\xC3\xB0", "\xC5\x81"}}));  // F0 9F: half of an emoji
  StreamDecoder stream(tokenizer, SkipSpecial::kNo);
  EXPECT_EQ(stream.push(256), "");
  EXPECT_EQ(stream.push(0x98), "");
  EXPECT_EQ(stream.push(0x80), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.push(256), "");
  EXPECT_EQ(stream.push('x'), "\xEF\xBF\xBDx");
  EXPECT_EQ(stream.push(0xC3), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.push('y'), "y") << "usable again";
}

TEST(TokenizerStream, ByteTokensAreTextAsAWholeOrNotAtAll) {
  const TokenizerFolder folder;
  const Tokenizer tokenizer =
      folder.load(llama2_json("\xE2\x96\x81"
                              "a",
                              {}));
  StreamDecoder stream(tokenizer, SkipSpecial::kNo);
  EXPECT_EQ(stream.push(259), "") << "the first space is the normalizer's";
  EXPECT_EQ(stream.push(3 + 0xC3), "");
  EXPECT_EQ(stream.push(3 + 0xA4), "");
  EXPECT_EQ(stream.push(260),
            "\xC3\xA4"
            "a");
  EXPECT_EQ(stream.push(259), " ");
  EXPECT_EQ(stream.push(3 + 0xC3), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(tokenizer.decode({259, 3 + 0xC3, 3 + 0xA4, 3 + 0xC3}), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

}  // namespace
}  // namespace fsdp::tokenizer
