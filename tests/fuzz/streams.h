#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "tests/fuzz/promises.h"
#include "text/documents/byte_stream.h"

namespace fsdp::fuzz {

// A few bytes may stand for gigabytes: nobody waits for more than this.
inline constexpr size_t kMaxContent = size_t{4} << 20;

struct StreamContent {
  std::string bytes;
  bool is_accepted = false;  // to its end, or to kMaxContent
};

// What a stream gives in pieces of `piece` bytes. `make` opens it.
template <class Make>
StreamContent read_stream(const Make& make, size_t piece) {
  StreamContent content;
  content.is_accepted = accepts([&] {
    const auto stream = make();
    std::string buffer(piece, '\0');
    uint64_t consumed = 0;
    while (content.bytes.size() < kMaxContent) {
      const size_t got = stream->read(buffer.data(), piece);
      FUZZ_REQUIRE(got <= piece && stream->bytes_consumed() >= consumed);
      consumed = stream->bytes_consumed();
      if (got == 0) return;
      content.bytes.append(buffer, 0, got);
    }
  });
  return content;
}

// The same bytes come whatever the pieces are; a broken stream may be noticed sooner or later.
template <class Make>
StreamContent read_in_pieces(const Make& make) {
  const StreamContent large = read_stream(make, size_t{1} << 20);
  const StreamContent small = read_stream(make, 1009);
  const size_t common = std::min(small.bytes.size(), large.bytes.size());
  FUZZ_REQUIRE(small.bytes.compare(0, common, large.bytes, 0, common) == 0);
  if (large.bytes.size() < kMaxContent) {
    FUZZ_REQUIRE(small.is_accepted == large.is_accepted);
    FUZZ_REQUIRE(!large.is_accepted || small.bytes.size() == large.bytes.size());
  }
  return large;
}

}  // namespace fsdp::fuzz
