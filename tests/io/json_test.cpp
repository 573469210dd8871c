#include "io/base/json.h"

#include <gtest/gtest.h>

#include "tests/io/temporary_folder.h"

namespace fsdp::io {
namespace {

Caught parse(std::string_view text, const JsonLimits& limits = {}) {
  return catch_error([&] { parse_json(text, "a.json", limits); });
}

TEST(Json, BuildsTheSameDocumentAsTheLibrary) {
  const std::string text = R"({"a":[1,-2,3.5,true,null,"x\u00e9"],"b":{"c":{},"d":[]},"":18446744073709551615})";
  EXPECT_EQ(parse_json(text, "a.json"), nlohmann::json::parse(text));
  for (const char* scalar : {"1", "\"x\"", "null", "[]", "{}", " [ 1 ] \n"}) {
    EXPECT_EQ(parse_json(scalar, "a.json"), nlohmann::json::parse(scalar));
  }
}

TEST(Json, DuplicateKeysAreNamedWithTheirPlace) {
  const Caught error = parse("{\"a\": 1,\n \"b\": {\"k\": 1, \"k\": 2}}");
  EXPECT_TRUE(error.says("'k' a second time")) << error.text;
  EXPECT_TRUE(error.says("'a.json':2:")) << error.text;
  EXPECT_EQ(parse(R"({"a":{"k":1},"b":{"k":1}})").text, "no error");
}

TEST(Json, DepthIsBounded) {
  EXPECT_EQ(parse(std::string(64, '[') + std::string(64, ']')).text, "no error");
  EXPECT_TRUE(parse(std::string(65, '[') + std::string(65, ']')).says("nested levels"));
  EXPECT_TRUE(parse(std::string(1 << 20, '[')).says("nested levels"));
}

TEST(Json, SizeAndNumberOfValuesAreBounded) {
  EXPECT_TRUE(parse("[1,2,3]", {.max_bytes = 6}).says("got 7 bytes"));
  EXPECT_TRUE(parse("[1,2,3]", {.max_values = 3}).says("more than 3 values"));
  EXPECT_EQ(parse("[1,2,3]", {.max_values = 4}).text, "no error");
}

TEST(Json, SyntaxErrorsHaveLineAndColumn) {
  const Caught error = parse("{\n  \"a\": 1,\n  \"b\": }\n");
  EXPECT_TRUE(error.says("'a.json':3:8")) << error.text;
  EXPECT_TRUE(error.is_one_line());
  EXPECT_EQ(error.kind, ErrorKind::kData);
  EXPECT_EQ(parse("{", {.kind = ErrorKind::kModel}).kind, ErrorKind::kModel);
}

TEST(Json, WhatIsNotStrictJsonIsRefused) {
  const std::string_view texts[] = {"",        " ",       "{} x",     "[1,]",     "{'a':1}",       "NaN",
                                    "[1e999]", "// c\n1", "\"\xff\"", "\"\xc3\"", "{\"a\":1}\xff", "\"a\nb\""};
  for (std::string_view text : texts) {
    const Caught error = parse(text);
    EXPECT_TRUE(error.says("[json] 'a.json'")) << text << " -> " << error.text;
    EXPECT_TRUE(error.is_one_line()) << error.text;
  }
  EXPECT_TRUE(parse(std::string_view("{}\0{}", 5)).says("NUL byte at offset 2"));
}

TEST(Json, Files) {
  const TemporaryFolder folder;
  write_text(folder / "ok.json", "{\"a\": 1}");
  EXPECT_EQ(read_json_file(folder / "ok.json")["a"], 1);
  EXPECT_TRUE(catch_error([&] { read_json_file(folder / "none.json"); }).says("none.json': got no such file"));
  EXPECT_TRUE(catch_error([&] { read_json_file(folder.path()); }).says("got a folder"));
  EXPECT_TRUE(catch_error([&] { read_json_file(folder / "ok.json", {.max_bytes = 4}); }).says("expected at most 4"));
}

TEST(Json, Strings) {
  EXPECT_EQ(json_string("a\"\n"), R"("a\"\n")");
  EXPECT_TRUE(catch_error([] { json_string("\xff"); }).says("not UTF-8"));
}

}  // namespace
}  // namespace fsdp::io
