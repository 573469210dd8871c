#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/documents/byte_stream.h"

namespace fsdp::io {

struct Line {
  std::string_view text;     // without its line feed; kPadding readable bytes follow; valid until the next call
  uint64_t number = 0;       // from 1
  uint64_t offset = 0;       // of its first byte in the stream
  bool is_ended = false;     // by a line feed; false for the rest of a stream without one
  bool is_too_long = false;  // then `text` is its beginning
};

// The lines of a stream. Holds one line and a few hundred KiB at a time. Leaves out a UTF-8 byte order mark.
class LineReader {
 public:
  static constexpr size_t kPadding = 64;  // what simdjson may read behind a line

  // `path` is for messages. A line of more than `max_line_bytes` is handed out as too long, and its rest passed over.
  LineReader(std::unique_ptr<ByteStream> stream, std::string path, uint64_t max_line_bytes);

  // False at the end. Throws what the stream throws, and Error(kData) if the stream is no text at all.
  bool next(Line& line);
  // The stream has thrown: nothing more comes.
  bool is_broken() const { return is_broken_; }
  uint64_t bytes_consumed() const { return stream_->bytes_consumed(); }

 private:
  bool find_end(size_t& end);
  bool fill();
  void make_room();
  void read_start();
  void pass_over_rest();

  std::unique_ptr<ByteStream> stream_;
  std::string path_;
  uint64_t max_line_bytes_;
  std::vector<char> buffer_;
  size_t begin_ = 0;     // of what was not handed out yet
  size_t end_ = 0;       // of what was read
  uint64_t offset_ = 0;  // of begin_ in the stream
  uint64_t num_lines_ = 0;
  bool is_started_ = false;
  bool is_at_end_ = false;
  bool is_broken_ = false;
  bool is_inside_long_line_ = false;
};

}  // namespace fsdp::io
