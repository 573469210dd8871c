#include "io/torch_archive/pickle_cursor.h"

#include "io/base/error.h"

namespace fsdp::io {

void PickleCursor::fail(const std::string& detail) const {
  throw Error(ErrorKind::kModel,
              "[pickle] " + in_quotes(origin_) + " before byte " + std::to_string(position_) + ": " + detail);
}

void PickleCursor::require(uint64_t num_bytes) const {
  if (num_bytes > num_left()) {
    fail("got a length of " + std::to_string(num_bytes) + ", expected at most the " + std::to_string(num_left()) +
         " bytes that are left. The file is truncated or damaged.");
  }
}

std::string_view PickleCursor::take(uint64_t num_bytes) {
  require(num_bytes);
  const std::string_view taken = bytes_.substr(position_, num_bytes);
  position_ += num_bytes;
  return taken;
}

uint64_t PickleCursor::unsigned_number(size_t num_bytes) {
  const std::string_view raw = take(num_bytes);
  uint64_t value = 0;
  for (size_t i = num_bytes; i-- > 0;) value = value << 8 | static_cast<uint8_t>(raw[i]);
  return value;
}

int64_t PickleCursor::signed_number(uint64_t num_bytes) {
  if (num_bytes > 8) {
    fail("got an integer of " + std::to_string(num_bytes) + " bytes, expected at most 8. The file is damaged.");
  }
  if (num_bytes == 0) return 0;
  const unsigned unused_bits = static_cast<unsigned>(64 - 8 * num_bytes);
  return static_cast<int64_t>(unsigned_number(num_bytes) << unused_bits) >> unused_bits;  // extends the sign
}

std::string_view PickleCursor::line(size_t max_bytes) {
  const std::string_view rest = bytes_.substr(position_, max_bytes + 1);
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos) {
    fail("got a name without an end, expected at most " + std::to_string(max_bytes) +
         " bytes. The file is truncated or damaged.");
  }
  position_ += end + 1;
  return rest.substr(0, end);
}

}  // namespace fsdp::io
