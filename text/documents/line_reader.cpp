#include "text/documents/line_reader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "io/base/error.h"

namespace fsdp::io {

namespace {

constexpr size_t kFirstBuffer = size_t{256} << 10;

struct Magic {
  std::string_view bytes;
  std::string_view name;
  std::string_view fix;
};

// Files whose name hides what they are. None of them is the start of UTF-8 text or of a JSON object.
constexpr std::array<Magic, 8> kMagics = {{
    {"\x1f\x8b", "gzip data", "Name the file .gz"},
    {"\x28\xb5\x2f\xfd", "zstd data", "Name the file .zst"},
    {"\xff\xfe", "UTF-16", "Convert it with iconv"},
    {"\xfe\xff", "UTF-16", "Convert it with iconv"},
    {"\xfd"
     "7zXZ",
     "xz data", "Unpack it with xz -d"},
    {"BZh91AY", "bzip2 data", "Unpack it with bzip2 -d"},
    {"PK\x03\x04", "a zip archive", "Unpack it with unzip"},
    {"PAR1\x15", "parquet", "Name the file .parquet"},
}};

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

LineReader::LineReader(std::unique_ptr<ByteStream> stream, std::string path, uint64_t max_line_bytes)
    : stream_(std::move(stream)),
      path_(std::move(path)),
      max_line_bytes_(max_line_bytes),
      buffer_(kFirstBuffer + kPadding) {}

bool LineReader::next(Line& line) {
  if (!is_started_) read_start();
  if (is_inside_long_line_) pass_over_rest();
  size_t end = 0;
  line.is_ended = find_end(end);
  const std::string_view text(buffer_.data() + begin_, end - begin_);
  line.is_too_long = text.size() > max_line_bytes_;
  if (text.empty() && !line.is_ended) return false;
  line.text = text;
  line.number = ++num_lines_;
  line.offset = offset_;
  is_inside_long_line_ = line.is_too_long && !line.is_ended;
  const size_t taken = text.size() + (line.is_ended ? 1 : 0);
  begin_ += taken;
  offset_ += taken;
  return true;
}

// Where the line at begin_ ends. False if it does so without a line feed: at the end of the stream, or after more than
// max_line_bytes_.
bool LineReader::find_end(size_t& end) {
  size_t searched = 0;  // from begin_
  for (;;) {
    const char* from = buffer_.data() + begin_ + searched;
    const void* found = std::memchr(from, '\n', end_ - begin_ - searched);
    if (found != nullptr) {
      end = static_cast<size_t>(static_cast<const char*>(found) - buffer_.data());
      return true;
    }
    searched = end_ - begin_;
    if (searched > max_line_bytes_ || !fill()) {
      end = end_;
      return false;
    }
  }
}

bool LineReader::fill() {
  if (is_at_end_) return false;
  make_room();
  size_t got = 0;
  try {
    got = stream_->read(buffer_.data() + end_, buffer_.size() - kPadding - end_);
  } catch (const Error&) {
    is_broken_ = true;
    throw;
  }
  end_ += got;
  is_at_end_ = got == 0;
  return got > 0;
}

void LineReader::make_room() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const size_t room = buffer_.size() - kPadding;
  if (end_ * 2 > room) buffer_.resize(room * 2 + kPadding);
}

void LineReader::read_start() {
  is_started_ = true;
  constexpr size_t kLongestMagic = 8;
  while (end_ < kLongestMagic && fill()) {
  }
  const std::string_view start(buffer_.data(), end_);
  for (const Magic& magic : kMagics) {
    if (!start.starts_with(magic.bytes)) continue;
    is_broken_ = true;
    throw Error(ErrorKind::kData, "[read] " + in_quotes(path_) + ": got " + std::string(magic.name) +
                                      ", expected text in UTF-8. " + std::string(magic.fix) + ".");
  }
  if (start.starts_with(kByteOrderMark)) begin_ = offset_ = kByteOrderMark.size();
}

void LineReader::pass_over_rest() {
  is_inside_long_line_ = false;
  for (;;) {
    const char* from = buffer_.data() + begin_;
    const void* found = std::memchr(from, '\n', end_ - begin_);
    const size_t passed =
        found != nullptr ? static_cast<size_t>(static_cast<const char*>(found) - from) + 1 : end_ - begin_;
    begin_ += passed;
    offset_ += passed;
    if (found != nullptr || !fill()) return;
  }
}

}  // namespace fsdp::io
