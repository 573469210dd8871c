#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/usage.h"
#include "tests/text/documents/compressed.h"
#include "tests/text/documents/reading.h"
#include "text/documents/json_field.h"
#include "text/documents/line_reader.h"

namespace fsdp::io {
namespace {

using Texts = std::vector<std::string>;

DocumentOptions field(const std::string& name, BadRecord bad_record = BadRecord::kStop) {
  DocumentOptions options;
  options.text_field = name;
  options.bad_record = bad_record;
  return options;
}

Caught error_of(std::string_view line, const std::string& name = "text") {
  return read_content("a.jsonl", std::string(line) + "\n", field(name)).error;
}

// 15 bytes for each of the line; with the next power of two as its capacity, 18.
TEST(JsonLines, ALineTakesMemoryInProportion) {
  constexpr size_t kLine = (size_t{4} << 20) + 1000;
  std::string line = R"({"text":")";
  line.append(kLine - line.size() - 2, 'x').append("\"}");
  line.append(LineReader::kPadding, '\0');
  const size_t before = usage::held_bytes();
  JsonField field("text");
  std::string_view text;
  JsonField::Problem problem;
  ASSERT_TRUE(field.find(std::string_view(line).substr(0, kLine), text, problem)) << problem.detail;
  EXPECT_EQ(text.size(), kLine - 11);
  EXPECT_LT(usage::held_bytes() - before, 16 * kLine);
}

TEST(JsonLines, OneObjectALine) {
  const std::string content =
      "\xef\xbb\xbf{\"text\":\"caf\\u00e9\\n\\ud83d\\ude00\"}\r\n\n  \t\r\n { \"id\" : 7, \"text\" : \"\" } "
      "\n{\"text\":\"last\"}";
  const Reading reading = read_content("a.jsonl", content);
  EXPECT_EQ(reading.error.text, "no error");
  EXPECT_EQ(reading.texts(), Texts({"caf\u00e9\n\U0001f600", "", "last"}));
  EXPECT_EQ(reading.documents[0].record, 1U);
  EXPECT_EQ(reading.documents[0].offset, 3U);
  EXPECT_EQ(reading.documents[2].record, 5U);
  EXPECT_EQ(content.substr(reading.documents[2].offset), "{\"text\":\"last\"}");
  EXPECT_EQ(reading.bytes_consumed, content.size());
}

TEST(JsonLines, NamesEndInJsonToo) {
  for (const char* name : {"a.jsonl", "a.json", "a.b.json"}) {
    EXPECT_EQ(read_content(name, R"({"text":"x"})").texts(), Texts({"x"}));
  }
  EXPECT_EQ(read_content("a.json.gz", gzip(R"({"text":"x"})")).texts(), Texts({"x"}));
  EXPECT_EQ(read_content("a.jsonl.zst", zstd(R"({"text":"x"})")).texts(), Texts({"x"}));
}

TEST(JsonLines, FieldsInsideOfObjects) {
  const std::string line = R"({"b":"no","a":{"x":{"b":"no"},"y":[{"b":"no"}],"b":"yes"},"text":{"b":"no"}})";
  EXPECT_EQ(read_content("a.jsonl", line, field("a.b")).texts(), Texts({"yes"}));
  EXPECT_EQ(read_content("a.jsonl", line, field("a.x.b")).texts(), Texts({"no"}));
  EXPECT_TRUE(error_of(line, "a.y.b").says("got an array in field 'y', expected an object"));
  EXPECT_TRUE(error_of(line, "a.c").says("got no field 'c', expected a string there"));
  EXPECT_TRUE(error_of(line, "a.x").says("got an object in field 'x', expected a string"));
  EXPECT_EQ(read_content("a.jsonl", "{\"caf\\u00e9\":\"escaped\"}", field("caf\u00e9")).texts(), Texts({"escaped"}));
}

TEST(JsonLines, WhatIsWrongWithTheField) {
  EXPECT_TRUE(error_of(R"({"other":1,"id":{"a":2}})").says("got no field 'text' (there are: 'other, id'), expected"));
  EXPECT_TRUE(error_of("{}").says("got no field 'text', expected"));
  EXPECT_TRUE(error_of(R"({"text":null})").says("got null in field 'text', expected a string"));
  EXPECT_TRUE(error_of(R"({"text":["x"]})").says("got an array in field 'text'"));
  EXPECT_TRUE(error_of(R"({"text":1.5})").says("got a number in field 'text'"));
  EXPECT_TRUE(error_of(R"({"text":"a","x":1,"text":"b"})").says("got the field 'text' a second time"));
  EXPECT_TRUE(error_of(R"({"a":{"t":"x"},"a":{}})", "a.t").says("got the field 'a' a second time"));
  EXPECT_TRUE(error_of(R"([{"text":"a"}])").says("got an array, expected an object on a line of its own"));
  EXPECT_TRUE(error_of(R"("text")").says("got a string, expected an object"));
}

TEST(JsonLines, WhatIsNotStrictJsonIsRefusedWithItsPlace) {
  // nlohmann-json's parser is the judge; the byte is the first that can not be.
  const std::pair<std::string, int> lines[] = {{R"({"text":"a")", 11},
                                               {R"({"text":"a"} x)", 13},
                                               {R"({"text":"a",})", 12},
                                               {R"({'text':"a"})", 1},
                                               {R"({"text":"a","n":01})", 17},
                                               {R"({"text":"a","n":NaN})", 16},
                                               {"{\"text\":\"a\tb\"}", 10},
                                               {R"({"text":"\x"})", 10},
                                               {R"({"text":"\ud800"})", 15},
                                               {"{\"text\":\"\xff\"}", 9},
                                               {"{\"text\":\"a\",\"b\":\"\xc3(\"}", 18},
                                               {R"({"text":"a"}{"text":"b"})", 12},
                                               {"{\"text\":\"a\"}\xff", 12},
                                               {R"({"text":"a","n":1e999})", 20}};
  for (const auto& [line, at] : lines) {
    EXPECT_FALSE(nlohmann::json::accept(line)) << line;
    const Caught error = error_of("{\"text\":\"fine\"}\n" + line);
    EXPECT_TRUE(error.says("a.jsonl':2: at byte " + std::to_string(16 + at) + " got ")) << line << ": " << error.text;
    EXPECT_TRUE(error.is_one_line());
    EXPECT_EQ(error.kind, ErrorKind::kData);
  }
  EXPECT_TRUE(error_of(std::string_view("{\"text\":\"a\"}\0", 13)).says("at byte 12 got a NUL byte"));
}

TEST(JsonLines, ValidJsonBeyondTheFastParserIsTaken) {
  const std::string deep = std::string(2000, '[') + std::string(2000, ']');
  const std::string content = R"({"n":123456789012345678901234567890,"text":"big"})"
                              "\n"
                              R"({"d":)" +
                              deep + R"(,"text":"deep"})";
  EXPECT_EQ(read_content("a.jsonl", content).texts(), Texts({"big", "deep"}));
}

TEST(JsonLines, BadLinesAreSkippedAndCounted) {
  const std::string content = "{\"text\":\"a\"}\n{oops\n{\"text\":3}\n\n{\"text\":\"b\"}\n\xff\n";
  const Reading reading = read_content("a.jsonl", content, field("text", BadRecord::kSkip));
  EXPECT_EQ(reading.texts(), Texts({"a", "b"}));
  EXPECT_EQ(reading.num_skipped, 3U);
  EXPECT_EQ(read_content("a.jsonl", "oops", field("text", BadRecord::kSkip)).num_skipped, 1U);
  EXPECT_EQ(read_content("a.jsonl", "\n\n", field("text", BadRecord::kSkip)).num_skipped, 1U);
  EXPECT_TRUE(read_content("a.jsonl", "\n\n").error.says("holds no document"));
}

TEST(JsonLines, AfterAnErrorTheNextCallGoesOn) {
  const TemporaryFolder folder;
  const std::string content = "{oops\n{\"text\":\"a\"}\n{\"text\":3}\n" + std::string(100, '\n') + "{\"text\":\"b\"}";
  const std::string whole = gzip(content);
  write_text(folder / "a.jsonl", content);
  write_text(folder / "cut.jsonl.gz", whole.substr(0, whole.size() - 4));
  for (const char* name : {"a.jsonl", "cut.jsonl.gz"}) {
    const auto reader = DocumentReader::open(folder / name, {});
    Document document;
    EXPECT_THROW(reader->next(document), Error);
    EXPECT_TRUE(reader->next(document));
    EXPECT_EQ(document.text, "a");
    EXPECT_THROW(reader->next(document), Error);
    if (name == std::string("a.jsonl")) {
      EXPECT_TRUE(reader->next(document));
      EXPECT_EQ(document.text, "b");
    } else {
      EXPECT_THROW(reader->next(document), Error);  // cut off: there is no line behind it
    }
    EXPECT_FALSE(reader->next(document));
    EXPECT_FALSE(reader->next(document));
  }
}

TEST(JsonLines, AFileOfBadLinesHasNoFurtherError) {
  const TemporaryFolder folder;
  write_text(folder / "a.jsonl", "oops");
  const auto reader = DocumentReader::open(folder / "a.jsonl", {});
  Document document;
  EXPECT_THROW(reader->next(document), Error);
  EXPECT_FALSE(reader->next(document));
}

TEST(JsonLines, WholeLines) {
  DocumentOptions options;
  options.whole_lines = true;
  const std::string content = "{\"messages\":[]}\r\n {\"a\":1}\n";
  EXPECT_EQ(read_content("a.jsonl", content, options).texts(), Texts({"{\"messages\":[]}", " {\"a\":1}"}));
  EXPECT_TRUE(read_content("a.jsonl", "[]", options).error.says("got an array, expected an object"));
  EXPECT_TRUE(read_content("a.jsonl", "{]", options).error.says(":1: at byte 1 got"));
}

TEST(JsonLines, LongLines) {
  const std::string text(5'000'000, 'z');
  const std::string content = "{\"text\":\"a\"}\n{\"text\":\"" + text + "\"}\n{\"text\":\"b\"}\n";
  EXPECT_EQ(read_content("a.jsonl", content).texts(), Texts({"a", text, "b"}));
  DocumentOptions options;
  options.max_document_bytes = 20;
  EXPECT_TRUE(read_content("a.jsonl", content, options).error.says(":2: at byte 13 got a line of more than 20 bytes"));
  options.bad_record = BadRecord::kSkip;
  const Reading reading = read_content("a.jsonl", content, options);
  EXPECT_EQ(reading.texts(), Texts({"a", "b"}));
  EXPECT_EQ(reading.num_skipped, 1U);
  EXPECT_EQ(reading.documents[1].record, 3U);
  EXPECT_EQ(reading.documents[1].offset, 13 + text.size() + 12);
}

// One character of a JSON string, written in one of the ways that there are.
std::string written(char32_t code) {
  constexpr char kHex[] = "0123456789aBcDeF";
  const auto escape = [&](char32_t unit) {
    std::string out = "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out += kHex[(unit >> shift) & 15];
    return out;
  };
  const auto utf8 = [](char32_t c) {
    std::string out;
    if (c < 0x80) return std::string(1, static_cast<char>(c));
    if (c < 0x800) {
      out += static_cast<char>(0xc0 | (c >> 6));
    } else {
      out += c < 0x10000 ? std::string(1, static_cast<char>(0xe0 | (c >> 12)))
                         : std::string{static_cast<char>(0xf0 | (c >> 18)), static_cast<char>(0x80 | ((c >> 12) & 63))};
      out += static_cast<char>(0x80 | ((c >> 6) & 63));
    }
    return out += static_cast<char>(0x80 | (c & 63));
  };
  const bool must_escape = code < 0x20 || code == '"' || code == '\\';
  if (must_escape || *rc::gen::inRange(0, 3) == 0) {
    if (code >= 0x10000) return escape(0xd800 + ((code - 0x10000) >> 10)) + escape(0xdc00 + ((code - 0x10000) & 0x3ff));
    const size_t named = std::string_view("\"\\/\b\f\n\r\t").find(static_cast<char>(code));
    if (code < 0x80 && named != std::string_view::npos && *rc::gen::arbitrary<bool>()) {
      return {'\\', "\"\\/bfnrt"[named]};
    }
    return escape(code);
  }
  return utf8(code);
}

// The only other implementation of UTF-8 in reach writes what is expected.
std::string plain(const std::u32string& text) {
  std::string json = "\"";
  constexpr char kHex[] = "0123456789abcdef";
  for (const char32_t c : text) {
    const std::vector<char32_t> units =
        c < 0x10000 ? std::vector<char32_t>{c}
                    : std::vector<char32_t>{0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff)};
    for (const char32_t unit : units) {
      json += "\\u";
      for (int shift = 12; shift >= 0; shift -= 4) json += kHex[(unit >> shift) & 15];
    }
  }
  return nlohmann::json::parse(json + "\"").get<std::string>();
}

rc::Gen<std::u32string> texts_gen() {
  const auto code = rc::gen::weightedOneOf<char32_t>({
      {6, rc::gen::inRange<char32_t>(0x20, 0x7f)},
      {2, rc::gen::inRange<char32_t>(0, 0x20)},
      {2, rc::gen::inRange<char32_t>(0x7f, 0xd800)},
      {1, rc::gen::inRange<char32_t>(0xe000, 0x10000)},
      {1, rc::gen::inRange<char32_t>(0x10000, 0x110000)},
      {2, rc::gen::element<char32_t>('"', '\\', '/', '\n', '\r', 0)},
  });
  return rc::gen::container<std::u32string>(code);
}

RC_GTEST_PROP(JsonLines, WhateverIsWrittenComesBack, ()) {
  const auto texts = *rc::gen::container<std::vector<std::u32string>>(texts_gen());
  RC_PRE(!texts.empty());
  std::string content;
  Texts expected;
  for (const std::u32string& text : texts) {
    std::string json;
    for (const char32_t code : text) json += written(code);
    const std::string other = *rc::gen::element<std::string>("", R"("n":[1,{"text":"no"}],)", R"( "k" : "\"v" , )");
    const std::string end = *rc::gen::element<std::string>("\n", "\r\n", "\n\n", " \n");
    content += "{" + other + "\"text\":\"" + json + "\"}" + end;
    expected.push_back(plain(text));
  }
  if (*rc::gen::arbitrary<bool>()) content.resize(content.find_last_of('}') + 1);
  const Reading reading = read_content("a.jsonl", content);
  RC_ASSERT(reading.error.text == "no error");
  RC_ASSERT(reading.texts() == expected);
}

}  // namespace
}  // namespace fsdp::io
