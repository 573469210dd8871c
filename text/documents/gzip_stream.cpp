#include <zlib.h>

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "text/documents/byte_stream.h"
#include "text/documents/file_window.h"

namespace fsdp::io {

namespace {

constexpr int kGzipOnly = 16 + MAX_WBITS;  // zlib's way to say: with a gzip header, and check its CRC
constexpr size_t kMaxPiece = size_t{1} << 30;

class GzipStream : public ByteStream {
 public:
  explicit GzipStream(InputFile file) : window_(std::move(file)) {
    if (::inflateInit2(&zlib_, kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~GzipStream() override { ::inflateEnd(&zlib_); }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  size_t read(char* out, size_t num_bytes) override {
    const auto wanted = static_cast<uInt>(std::min(num_bytes, kMaxPiece));
    zlib_.next_out = reinterpret_cast<Bytef*>(out);
    zlib_.avail_out = wanted;
    while (zlib_.avail_out == wanted && (inside_member_ || find_member())) inflate_some();
    return wanted - zlib_.avail_out;
  }
  uint64_t bytes_consumed() const override { return window_.end() - zlib_.avail_in; }

 private:
  bool refill() {
    const bool more = window_.refill();
    zlib_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(window_.data()));
    zlib_.avail_in = static_cast<uInt>(window_.size());
    return more;
  }

  // Steps over padding to where a member starts; false at the end of the file.
  bool find_member() {
    for (;;) {
      while (zlib_.avail_in > 0 && num_members_ > 0 && *zlib_.next_in == 0) {
        ++zlib_.next_in;
        --zlib_.avail_in;
      }
      if (zlib_.avail_in > 0) break;
      if (!refill()) return false;
    }
    ::inflateReset(&zlib_);
    inside_member_ = true;
    member_begin_ = bytes_consumed();
    return true;
  }

  void inflate_some() {
    if (zlib_.avail_in == 0 && !refill()) {
      throw error("got the end of the file inside of gzip data that started at byte " + std::to_string(member_begin_) +
                  ", expected more. The file is cut off: fetch it again.");
    }
    const int code = ::inflate(&zlib_, Z_NO_FLUSH);
    if (code == Z_STREAM_END) {
      inside_member_ = false;
      ++num_members_;
    } else if (code == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (code != Z_OK) {
      const char* reason = zlib_.msg != nullptr ? zlib_.msg : "no progress";
      throw error("got broken gzip data (" + std::string(reason) +
                  "), expected gzip. Nothing behind it can be read: fetch the file again.");
    }
  }

  Error error(const std::string& detail) const {
    return window_.error("at byte " + std::to_string(bytes_consumed()) + " " + detail);
  }

  FileWindow window_;
  z_stream zlib_ = {};
  bool inside_member_ = false;
  uint64_t num_members_ = 0;
  uint64_t member_begin_ = 0;
};

}  // namespace

std::unique_ptr<ByteStream> make_gzip_stream(InputFile file) { return std::make_unique<GzipStream>(std::move(file)); }

}  // namespace fsdp::io
