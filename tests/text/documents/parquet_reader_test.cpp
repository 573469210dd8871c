#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "io/base/json.h"
#include "tests/text/documents/reading.h"

namespace fsdp::io {
namespace {

using Texts = std::vector<std::string>;

std::filesystem::path sample(const std::string& name) {
  return std::filesystem::path(FSDP_IO_TEST_DATA_DIR) / "parquet" / (name + ".parquet");
}

DocumentOptions column(const std::string& name, BadRecord bad_record = BadRecord::kStop) {
  DocumentOptions options;
  options.text_field = name;
  options.bad_record = bad_record;
  return options;
}

TEST(ParquetPlugin, WithoutItTheErrorSaysHowToGetIt) {
  const char* kept = std::getenv("FSDP_PARQUET_PLUGIN");
  const std::string before = kept != nullptr ? kept : "";
  ::setenv("FSDP_PARQUET_PLUGIN", "/nowhere/libfsdp_parquet.so", 1);
  const Caught error = read_documents(sample("plain")).error;
  ::setenv("FSDP_PARQUET_PLUGIN", before.c_str(), 1);
  if (error.text == "no error") {
    std::cout << "the plug-in was loaded by another test of this process: nothing to see here\n";
    return;
  }
  EXPECT_EQ(error.kind, ErrorKind::kUsage);
  EXPECT_TRUE(error.says("'/nowhere/libfsdp_parquet.so': got ")) << error.text;
  EXPECT_TRUE(error.says("scripts/setup.sh --parquet") && error.says("pip install pyarrow")) << error.text;
}

#ifdef FSDP_PARQUET_PLUGIN_PATH

class ParquetReader : public testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("FSDP_PARQUET_PLUGIN", FSDP_PARQUET_PLUGIN_PATH, 1); }
};

TEST_F(ParquetReader, ReadsWhatPyarrowReads) {
  const nlohmann::json expected = read_json_file(sample("x").replace_filename("expected.json"));
  for (const char* name : {"plain", "snappy-dictionary", "large-string-zstd", "arrow-dictionary-gzip", "delta-v2-pages",
                           "checksums", "binary"}) {
    const Reading reading = read_documents(sample(name));
    EXPECT_EQ(reading.error.text, "no error");
    EXPECT_EQ(reading.texts(), expected.at(name).get<Texts>()) << name;
    EXPECT_EQ(reading.bytes_consumed, std::filesystem::file_size(sample(name)));
    ASSERT_EQ(reading.documents.size(), expected.at(name).size());
    EXPECT_EQ(reading.documents.back().record, expected.at(name).size());
  }
}

TEST_F(ParquetReader, MissingValuesAreBadRecords) {
  const Reading stopped = read_documents(sample("nulls"));
  EXPECT_EQ(stopped.texts(), Texts({"a"}));
  EXPECT_TRUE(stopped.error.says("nulls.parquet': row 2: got null in column 'text'")) << stopped.error.text;
  const Reading skipped = read_documents(sample("nulls"), column("text", BadRecord::kSkip));
  EXPECT_EQ(skipped.texts(), Texts({"a", "b"}));
  EXPECT_EQ(skipped.num_skipped, 2U);
}

TEST_F(ParquetReader, FieldsOfStructs) {
  const Reading reading = read_documents(sample("struct"), column("page.text", BadRecord::kSkip));
  EXPECT_EQ(reading.texts(), Texts({"inner", "last"}));
  EXPECT_EQ(reading.documents[1].record, 4U);
  EXPECT_EQ(reading.num_skipped, 2U);
  EXPECT_TRUE(read_documents(sample("struct")).error.says("no column 'text' (there are: page.title, page.text)"));
}

TEST_F(ParquetReader, ColumnsThatAreNoStrings) {
  EXPECT_TRUE(read_documents(sample("not-strings")).error.says("column 'text' of INT64"));
  const Caught lists = read_documents(sample("not-strings"), column("lists.list.element")).error;
  EXPECT_TRUE(lists.says("of lists")) << lists.text;
}

TEST_F(ParquetReader, BytesThatAreNotUtf8AreNamed) {
  const Reading stopped = read_documents(sample("not-utf8"));
  EXPECT_TRUE(stopped.error.says("row 2: got bytes that are not UTF-8 at byte 2 of the text")) << stopped.error.text;
  EXPECT_EQ(read_documents(sample("not-utf8"), column("text", BadRecord::kSkip)).texts(), Texts({"ok", "fine"}));
}

TEST_F(ParquetReader, LongTextsAreRefused) {
  DocumentOptions options;
  options.max_document_bytes = 299;
  EXPECT_TRUE(read_documents(sample("plain"), options).error.says("row 5: got a document of 300 bytes"));
  options.bad_record = BadRecord::kSkip;
  EXPECT_EQ(read_documents(sample("plain"), options).num_skipped, 1U);
}

TEST_F(ParquetReader, FilesWithoutADocument) {
  EXPECT_TRUE(read_documents(sample("no-rows")).error.says("holds no document"));
  EXPECT_TRUE(read_content("a.parquet", "").error.says("holds no document"));
  EXPECT_EQ(read_content("a.parquet", "", column("text", BadRecord::kSkip)).num_skipped, 1U);
}

TEST_F(ParquetReader, DamageIsAnErrorNotACrash) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a.parquet");
  EXPECT_TRUE(read_documents(folder / "a.parquet").error.says("got a folder"));
  EXPECT_TRUE(read_documents(folder / "b.parquet").error.says("got no such file"));
  const std::string whole = read_text(sample("checksums"));
  for (size_t length = 0; length < whole.size(); length += 13) {
    const Caught error = read_content("a.parquet", whole.substr(0, length)).error;
    ASSERT_TRUE(error.says("a.parquet': got ")) << length << ": " << error.text;
    ASSERT_TRUE(error.is_one_line()) << error.text;
  }
  // Pages have checksums: a flipped bit between the magic bytes and the footer does not go unnoticed.
  for (size_t at = 100; at < 900; at += 97) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    const Caught error = read_content("a.parquet", damaged).error;
    ASSERT_TRUE(error.says("row 1: got ")) << at << ": " << error.text;
    const Reading skipped = read_content("a.parquet", damaged, column("text", BadRecord::kSkip));
    ASSERT_EQ(skipped.num_skipped, 1U);
    ASSERT_TRUE(skipped.texts().empty());
  }
}

#else

TEST(ParquetReader, IsLeftOutOfThisBuild) {
  std::cout << "no fsdp_parquet in this build (scripts/setup.sh --parquet): its reader is not tested\n";
}

#endif

}  // namespace
}  // namespace fsdp::io
