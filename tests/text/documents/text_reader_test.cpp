#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/text/documents/compressed.h"
#include "tests/text/documents/reading.h"
#include "text/documents/utf8.h"

namespace fsdp::io {
namespace {

using Texts = std::vector<std::string>;

DocumentOptions separated_by(const std::string& separator) {
  DocumentOptions options;
  options.separator = separator;
  return options;
}

const DocumentOptions kStories = separated_by("<|endoftext|>");

DocumentOptions skipping(DocumentOptions options) {
  options.bad_record = BadRecord::kSkip;
  return options;
}

TEST(TextReader, AFileIsOneDocument) {
  const Reading reading = read_content("a.txt", "one\n\ntwo\r\n<|endoftext|>\n");
  EXPECT_EQ(reading.texts(), Texts({"one\n\ntwo\r\n<|endoftext|>\n"}));
  EXPECT_EQ(reading.documents[0].record, 1U);
  EXPECT_EQ(read_content("README", "any name").texts(), Texts({"any name"}));
}

TEST(TextReader, SeparatorLines) {
  const std::string content =
      "one\nmore\n<|endoftext|>\ntwo <|endoftext|> inside\n<|endoftext|>\n\n<|endoftext|>\nlast";
  const Reading reading = read_content("a.txt", content, kStories);
  EXPECT_EQ(reading.texts(), Texts({"one\nmore", "two <|endoftext|> inside", "last"}));
  for (const OwnedDocument& document : reading.documents) {
    EXPECT_EQ(content.compare(document.offset, document.text.size(), document.text), 0) << document.text;
  }
  EXPECT_EQ(reading.documents[1].record, 4U);
  EXPECT_EQ(reading.num_skipped, 0U);
  EXPECT_EQ(reading.bytes_consumed, content.size());
}

TEST(TextReader, SeparatorsOfOtherSystemsAndAtTheEdges) {
  EXPECT_EQ(read_content("a.txt", "one\r\nx\r\n<|endoftext|>\r\ntwo\r\n", kStories).texts(),
            Texts({"one\r\nx", "two"}));
  EXPECT_EQ(read_content("a.txt", "<|endoftext|>\none\n<|endoftext|>", kStories).texts(), Texts({"one"}));
  EXPECT_EQ(read_content("a.txt", "\xef\xbb\xbf<|endoftext|>\none", kStories).texts(), Texts({"one"}));
}

TEST(TextReader, CompressedFilesReadTheSame) {
  std::string content;
  Texts texts;
  for (int i = 0; i < 20'000; ++i) {
    texts.push_back("story " + std::to_string(i) + "\nend");
    content += texts.back() + "\n<|endoftext|>\n";
  }
  EXPECT_EQ(read_content("a.txt", content, kStories).texts(), texts);
  EXPECT_EQ(read_content("a.txt.gz", gzip(content), kStories).texts(), texts);
  EXPECT_EQ(read_content("a.txt.zst", zstd(content), kStories).texts(), texts);
}

TEST(TextReader, LongLinesAndLongDocuments) {
  const std::string line(3'000'000, 'x');
  EXPECT_EQ(read_content("a.txt", line + "\n<|endoftext|>\nnext", kStories).texts(), Texts({line, "next"}));
  DocumentOptions options = kStories;
  options.max_document_bytes = 4;
  EXPECT_EQ(read_content("a.txt", "four\n<|endoftext|>\nx\ny", options).texts(), Texts({"four", "x\ny"}));
  for (const std::string long_one : {"fiver", "a\nb\nc", "abcd\ne", line.c_str()}) {
    const std::string content = "ok\n<|endoftext|>\n" + long_one + "\nmore\n<|endoftext|>\nnext";
    const Caught error = read_content("a.txt", content, options).error;
    EXPECT_TRUE(error.says("a.txt':3: at byte 17 got a document of more than 4 bytes")) << error.text;
    const Reading reading = read_content("a.txt", content, skipping(options));
    EXPECT_EQ(reading.texts(), Texts({"ok", "next"})) << long_one.substr(0, 10);
    EXPECT_EQ(reading.num_skipped, 1U);
  }
}

TEST(TextReader, BytesThatAreNotUtf8AreNamed) {
  const std::string content = "ok\n<|endoftext|>\nline\nb\xc3(\n<|endoftext|>\nnext";
  const Reading stopped = read_content("a.txt", content, kStories);
  EXPECT_EQ(stopped.texts(), Texts({"ok"}));
  EXPECT_TRUE(stopped.error.says("a.txt':4: at byte 23 got bytes that are not UTF-8")) << stopped.error.text;
  const Reading skipped = read_content("a.txt", content, skipping(kStories));
  EXPECT_EQ(skipped.texts(), Texts({"ok", "next"}));
  EXPECT_EQ(skipped.num_skipped, 1U);
  EXPECT_TRUE(read_content("a.txt.gz", gzip(content), kStories).error.says(":4: at decompressed byte 23"));
}

TEST(TextReader, AFileWithoutADocumentIsABadRecord) {
  for (const std::string content : {"", " \n\t\r\n", "\xef\xbb\xbf"}) {
    const Caught error = read_content("a.txt", content).error;
    EXPECT_TRUE(error.says("a.txt': got a file that holds no document")) << error.text;
    EXPECT_TRUE(error.is_one_line());
    EXPECT_EQ(read_content("a.txt", content, skipping({})).num_skipped, 1U);
  }
  EXPECT_TRUE(read_content("a.txt", "<|endoftext|>\n\n<|endoftext|>\n", kStories).error.says("holds no document"));
  EXPECT_TRUE(read_content("a.txt.gz", "").error.says("holds no document"));
  EXPECT_TRUE(read_content("a.txt.zst", zstd("")).error.says("holds no document"));
}

TEST(TextReader, ABrokenStreamEndsItsFile) {
  const std::string content = "one\n<|endoftext|>\n" + std::string(100'000, 'y') + "\n<|endoftext|>\nthree";
  const std::string whole = gzip(content);
  const std::string cut = whole.substr(0, whole.size() - 20);
  const Reading stopped = read_content("a.txt.gz", cut, kStories);
  EXPECT_EQ(stopped.texts()[0], "one");
  EXPECT_TRUE(stopped.error.says("end of the file inside of gzip data")) << stopped.error.text;
  const Reading skipped = read_content("a.txt.gz", cut, skipping(kStories));
  EXPECT_EQ(skipped.error.text, "no error");
  EXPECT_EQ(skipped.num_skipped, 1U);
  EXPECT_EQ(skipped.texts()[0], "one");
  for (const std::string& text : skipped.texts()) EXPECT_NE(text, "three");
}

TEST(TextReader, FilesThatAreSomethingElseSaySo) {
  EXPECT_TRUE(read_content("a.txt", gzip("x")).error.says("got gzip data, expected text in UTF-8. Name the file .gz"));
  EXPECT_TRUE(read_content("a.txt", zstd("x")).error.says("got zstd data"));
  EXPECT_TRUE(read_content("a.txt.gz", gzip(gzip("x"))).error.says("got gzip data"));
  EXPECT_TRUE(read_content("a.txt", std::string("\xff\xfeh\0i\0", 6)).error.says("got UTF-16"));
  EXPECT_EQ(read_content("a.txt", gzip("x"), skipping({})).num_skipped, 1U);
}

TEST(TextReader, PathsThatAreNoFile) {
  const TemporaryFolder folder;
  EXPECT_TRUE(read_documents(folder.path()).error.says("got a folder, expected a file"));
  EXPECT_TRUE(read_documents(folder / "none.jsonl.gz").error.says("got no such file"));
}

TEST(TextReader, ImpossibleOptions) {
  const auto error = [](const auto& change) {
    DocumentOptions options;
    change(options);
    return read_content("a.txt", "x", options).error;
  };
  EXPECT_EQ(error([](auto& options) { options.text_field = ""; }).kind, ErrorKind::kUsage);
  EXPECT_TRUE(error([](auto& options) { options.text_field = "a..b"; }).says("text_field: got 'a..b'"));
  EXPECT_TRUE(error([](auto& options) { options.separator = "a\nb"; }).says("separator: got 'a\\x0ab'"));
  EXPECT_TRUE(error([](auto& options) { options.max_document_bytes = 0; }).says("max_document_bytes: got 0"));
}

TEST(Utf8, PrefixEndsAtTheFirstBadSequence) {
  const std::string good =
      "a\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf";
  EXPECT_EQ(valid_utf8_prefix(good), good.size());
  // The boundaries of RFC 3629, section 4.
  for (const char* bad :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2 ", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe1\x80",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xf1\x80\x80", "\xff"}) {
    EXPECT_EQ(valid_utf8_prefix(good + bad), good.size()) << in_quotes(bad);
    EXPECT_EQ(valid_utf8_prefix(good + bad + good), good.size()) << in_quotes(bad);
  }
}

}  // namespace
}  // namespace fsdp::io
