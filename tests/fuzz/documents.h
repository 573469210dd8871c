#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/promises.h"
#include "text/documents/byte_stream.h"
#include "text/documents/document_reader.h"

namespace fsdp::fuzz {

// Everything that a reader gives, copied.
struct ReadDocuments {
  std::vector<std::string> texts;
  uint64_t num_skipped = 0;
  bool is_accepted = false;  // read to its end
};

// `make` opens the reader.
template <class Make>
ReadDocuments read_all(const Make& make) {
  ReadDocuments got;
  got.is_accepted = accepts([&] {
    const std::unique_ptr<io::DocumentReader> reader = make();
    io::Document document;
    uint64_t last = 0;
    while (reader->next(document)) {
      FUZZ_REQUIRE(document.record > last);
      last = document.record;
      got.texts.emplace_back(document.text);
    }
    FUZZ_REQUIRE(!reader->next(document));
    got.num_skipped = reader->num_skipped();
  });
  return got;
}

// What both policies make of one file: who goes on after each error gets what skipping gives, and skipping never fails.
template <class Make>
ReadDocuments read_both_ways(io::DocumentOptions options, const Make& make) {
  options.bad_record = io::BadRecord::kSkip;
  const ReadDocuments skipped = read_all([&] { return make(options); });
  FUZZ_REQUIRE(skipped.is_accepted);
  options.bad_record = io::BadRecord::kStop;
  const std::unique_ptr<io::DocumentReader> reader = make(options);
  io::Document document;
  size_t num_documents = 0;
  uint64_t num_errors = 0;
  bool is_at_end = false;
  while (!is_at_end) {
    const bool returned = accepts([&] {
      is_at_end = !reader->next(document);
      if (is_at_end) return;
      FUZZ_REQUIRE(num_documents < skipped.texts.size() && document.text == skipped.texts[num_documents]);
      ++num_documents;
    });
    num_errors += returned ? 0 : 1;
    FUZZ_REQUIRE(num_errors <= skipped.num_skipped);
  }
  FUZZ_REQUIRE(num_documents == skipped.texts.size() && num_errors == skipped.num_skipped);
  return skipped;
}

// A stream of bytes in memory, handed out in small pieces.
class MemoryStream : public io::ByteStream {
 public:
  MemoryStream(std::string_view bytes, size_t piece) : bytes_(bytes), piece_(piece) {}
  size_t read(char* out, size_t num_bytes) override {
    const size_t got = bytes_.copy(out, std::min(num_bytes, piece_), position_);
    position_ += got;
    return got;
  }
  uint64_t bytes_consumed() const override { return position_; }

 private:
  std::string_view bytes_;
  size_t piece_;
  size_t position_ = 0;
};

// True for what a reader of lines refuses as a whole: its first bytes are those of another format.
inline bool looks_like_another_format(std::string_view text) {
  using namespace std::string_view_literals;
  for (const auto magic : {"\x1f\x8b"sv, "\x28\xb5\x2f\xfd"sv, "\xff\xfe"sv, "\xfe\xff"sv,
                           "\xfd"
                           "7zXZ"sv,
                           "BZh91AY"sv, "PK\x03\x04"sv, "PAR1\x15"sv}) {
    if (text.starts_with(magic)) return true;
  }
  return false;
}

inline std::string_view without_mark(std::string_view text) {
  return text.substr(text.starts_with("\xef\xbb\xbf") ? 3 : 0);
}

// `expect` reads the content in another way; a file of another format is passed over as a whole.
inline void require_expected(std::string_view content, const ReadDocuments& got,
                             ReadDocuments (*expect)(std::string_view)) {
  if (looks_like_another_format(content)) {
    FUZZ_REQUIRE(got.texts.empty() && got.num_skipped == 1);
    return;
  }
  const ReadDocuments expected = expect(content);
  FUZZ_REQUIRE(got.texts == expected.texts);
  FUZZ_REQUIRE(got.num_skipped == expected.num_skipped);
}

}  // namespace fsdp::fuzz
