#include "text/documents/byte_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/text/documents/compressed.h"
#include "tests/text/documents/reading.h"

namespace fsdp::io {
namespace {

// Text that compresses, longer than every buffer on the way.
std::string long_text(size_t num_bytes) {
  std::mt19937 random(7);
  std::string text;
  while (text.size() < num_bytes) text += "word " + std::to_string(random() % 5000) + (random() % 9 == 0 ? "\n" : " ");
  return text;
}

struct Content {
  std::string bytes;
  uint64_t consumed = 0;
  Caught error;
};

Content content_of(const std::string& name, std::string_view file, size_t piece = size_t{1} << 16) {
  const TemporaryFolder folder;
  write_text(folder / name, file);
  Content content;
  content.error = catch_error([&] {
    const auto stream = open_byte_stream(folder / name);
    std::string buffer(piece, '\0');
    for (size_t got = 0; (got = stream->read(buffer.data(), piece)) > 0;) content.bytes.append(buffer, 0, got);
    content.consumed = stream->bytes_consumed();
  });
  return content;
}

TEST(ByteStream, GivesBackWhatWasCompressedWhateverThePieces) {
  const std::string text = long_text(3'000'000);
  for (const auto& [name, file] : {std::pair{"a.txt", text}, {"a.txt.gz", gzip(text)}, {"a.txt.zst", zstd(text)}}) {
    for (const size_t piece : {size_t{1} << 10, size_t{70'001}, size_t{8} << 20}) {
      const Content content = content_of(name, file, piece);
      EXPECT_EQ(content.error.text, "no error");
      EXPECT_TRUE(content.bytes == text) << name << " in pieces of " << piece;
      EXPECT_EQ(content.consumed, file.size()) << name;
    }
  }
  EXPECT_EQ(content_of("a.gz", gzip("short"), 1).bytes, "short");
  EXPECT_EQ(content_of("a.zst", zstd("short"), 1).bytes, "short");
}

TEST(ByteStream, GzipMembersFollowEachOther) {
  EXPECT_EQ(content_of("a.gz", gzip("one ") + gzip("") + gzip("two")).bytes, "one two");
  EXPECT_EQ(content_of("a.gz", gzip("tape") + std::string(1000, '\0')).bytes, "tape");
  EXPECT_EQ(content_of("a.gz", gzip("one ") + std::string(512, '\0') + gzip("two")).bytes, "one two");
  EXPECT_EQ(content_of("a.gz", gzip("")).error.text, "no error");
  EXPECT_EQ(content_of("a.gz", "").error.text, "no error");
}

// Their headers say 14848 bytes and their last blocks are empty, which libzstd lets pass in small pieces.
TEST(ByteStream, AZstdFrameThatEndsBeforeItsSizeIsAnError) {
  using namespace std::string_literals;
  const std::string header = "\x28\xb5\x2f\xfd\xb0\x00\x3a\x00\x00"s, last = "\x01\x00\x00"s;
  for (const std::string& frame : {header + last, header + "\x18\x00\x00one"s + last}) {
    for (const size_t piece : {size_t{1}, size_t{1009}, size_t{1} << 20}) {
      EXPECT_TRUE(content_of("a.zst", frame, piece).error.says("broken zstd data")) << piece;
      EXPECT_TRUE(content_of("a.zst", zstd("two") + frame, piece).error.says("broken zstd data")) << piece;
    }
  }
}

// libzstd may know them, and does not limit their windows.
TEST(ByteStream, ZstdFormatsBeforeTheFinalOneAreRefused) {
  using namespace std::string_literals;
  const std::string old =
      "\xb5\x2f\xfd\x0e\xa4\x2f\xfd\x93\xa4\x2d\x28\xde\x26"s;  // of version 0.6: a window of 64 MiB
  // Files are read in pieces of 256 KiB: what follows this has its magic number in two of them.
  const std::string before = zstd_skippable(std::string((256 << 10) - 10, 'x'));
  for (const char version : {'\x22', '\x23', '\x24', '\x25', '\x26', '\x27'}) {
    EXPECT_TRUE(content_of("a.zst", version + old).error.says("Unknown frame descriptor"));
    EXPECT_TRUE(content_of("a.zst", zstd("one") + version + old).error.says("Unknown frame descriptor"));
    EXPECT_TRUE(content_of("a.zst", before + version + old).error.says("Unknown frame descriptor"));
  }
  EXPECT_EQ(content_of("a.zst", before + zstd("one")).bytes, "one");
}

TEST(ByteStream, ZstdFramesFollowEachOther) {
  const std::string frames = zstd_skippable("index") + zstd("one ") + zstd("") + zstd_skippable("") + zstd("two");
  EXPECT_EQ(content_of("a.zst", frames).bytes, "one two");
  EXPECT_EQ(content_of("a.zst", zstd_skippable("only")).bytes, "");
  EXPECT_EQ(content_of("a.zst", "").error.text, "no error");
}

TEST(ByteStream, EveryCutIsNoticed) {
  const std::string text = long_text(300);
  for (const auto& [name, file] : {std::pair{"a.gz", gzip(text)}, {"a.zst", zstd(text)}}) {
    for (size_t length = 1; length < file.size(); ++length) {
      const Content content = content_of(name, std::string_view(file).substr(0, length));
      ASSERT_TRUE(content.error.says("end of the file inside")) << name << " cut to " << length << content.error.text;
      ASSERT_TRUE(content.error.says("at byte " + std::to_string(length))) << content.error.text;
      ASSERT_EQ(content.error.kind, ErrorKind::kData);
      ASSERT_EQ(text.compare(0, content.bytes.size(), content.bytes), 0);
    }
  }
}

TEST(ByteStream, DamageIsNoticed) {
  const std::string text = long_text(5000);
  for (const auto& [name, file] : {std::pair{"a.gz", gzip(text)}, {"a.zst", zstd(text)}}) {
    for (size_t at = 0; at < file.size(); at += 29) {
      std::string damaged = file;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
      const Content content = content_of(name, damaged);
      // A bit may mean nothing; what comes out then is what was put in.
      ASSERT_TRUE(content.error.text != "no error" || content.bytes == text) << name << " at " << at;
      ASSERT_TRUE(content.error.is_one_line()) << content.error.text;
    }
  }
}

TEST(ByteStream, WhatFollowsTheDataIsNotTakenForPadding) {
  EXPECT_TRUE(content_of("a.gz", gzip("x") + "garbage").error.says("broken gzip data"));
  EXPECT_TRUE(content_of("a.zst", zstd("x") + "garbage").error.says("broken zstd data"));
  EXPECT_TRUE(content_of("a.gz", "plain text").error.says("broken gzip data"));
  EXPECT_TRUE(content_of("a.zst", "plain text").error.says("broken zstd data"));
}

TEST(ByteStream, WindowsAreLimited) {
  EXPECT_EQ(content_of("a.zst", zstd("text", kMaxZstdWindowLog)).bytes, "text");
  const Caught error = content_of("a.zst", zstd("text", kMaxZstdWindowLog + 1)).error;
  EXPECT_TRUE(error.says("larger window than 2^27") && error.says("--long=27")) << error.text;
}

TEST(ByteStream, ASmallFileDoesNotFillTheDisk) {
  const std::string most(kMaxExpansionFrom, ' ');
  EXPECT_EQ(content_of("a.zst", zstd(most)).bytes.size(), most.size());
  const std::string more(kMaxExpansionFrom + (size_t{1} << 20), ' ');
  for (const auto& [name, file] : {std::pair{"a.txt.gz", gzip(more)}, {"a.txt.zst", zstd(more)}}) {
    const Content content = content_of(name, file);
    EXPECT_TRUE(content.error.says(name) && content.error.says("decompress it first")) << content.error.text;
    EXPECT_LE(content.bytes.size(), kMaxExpansionFrom) << name;
  }
  // What is not compressed, and text that is, may be as long as they like.
  EXPECT_EQ(content_of("a.txt", more).bytes.size(), more.size());
  const std::string text = long_text(more.size());
  EXPECT_EQ(content_of("a.zst", zstd(text)).bytes.size(), text.size());
}

TEST(ByteStream, TheNameSaysTheCompression) {
  EXPECT_EQ(compression_of("a/b.jsonl.gz"), Compression::kGzip);
  EXPECT_EQ(compression_of("b.txt.zst"), Compression::kZstd);
  EXPECT_EQ(compression_of("gz"), Compression::kNone);
}

}  // namespace
}  // namespace fsdp::io
