#include "text/documents/byte_stream.h"

#include <algorithm>
#include <utility>

#include "text/documents/file_window.h"

namespace fsdp::io {

namespace {

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(InputFile file) : file_(std::move(file)) {}

  size_t read(char* out, size_t num_bytes) override {
    const auto piece = static_cast<size_t>(std::min<uint64_t>(num_bytes, file_.size() - position_));
    file_.read_at(position_, out, piece);
    position_ += piece;
    return piece;
  }
  uint64_t bytes_consumed() const override { return position_; }

 private:
  InputFile file_;
  uint64_t position_ = 0;
};

// Ends where a small file makes up bytes until the disk is full.
class LimitedStream : public ByteStream {
 public:
  LimitedStream(std::filesystem::path path, std::unique_ptr<ByteStream> stream)
      : path_(std::move(path)), stream_(std::move(stream)) {}

  size_t read(char* out, size_t num_bytes) override {
    const size_t count = stream_->read(out, num_bytes);
    total_ += count;
    if (total_ > kMaxExpansionFrom && total_ / kMaxExpansion > bytes_consumed()) {
      throw Error(ErrorKind::kData, "[read] " + in_quotes(path_.native()) + ": got " + std::to_string(total_) +
                                        " bytes out of the first " + std::to_string(bytes_consumed()) +
                                        ", expected at most " + std::to_string(kMaxExpansion) +
                                        " for one, as text has. If it is what you want, decompress it first.");
    }
    return count;
  }
  uint64_t bytes_consumed() const override { return stream_->bytes_consumed(); }

 private:
  std::filesystem::path path_;
  std::unique_ptr<ByteStream> stream_;
  uint64_t total_ = 0;
};

}  // namespace

FileWindow::FileWindow(InputFile file) : file_(std::move(file)), bytes_(kBytes) {}

bool FileWindow::refill() {
  const auto piece = static_cast<size_t>(std::min<uint64_t>(bytes_.size(), file_.size() - end_));
  file_.read_at(end_, bytes_.data(), piece);
  end_ += piece;
  size_ = piece;
  return piece > 0;
}

Compression compression_of(const std::filesystem::path& path) {
  if (path.native().ends_with(".gz")) return Compression::kGzip;
  if (path.native().ends_with(".zst")) return Compression::kZstd;
  return Compression::kNone;
}

std::unique_ptr<ByteStream> make_plain_stream(InputFile file) { return std::make_unique<PlainStream>(std::move(file)); }

std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path) {
  InputFile file(path, ErrorKind::kData);
  switch (compression_of(path)) {
    case Compression::kGzip:
      return std::make_unique<LimitedStream>(path, make_gzip_stream(std::move(file)));
    case Compression::kZstd:
      return std::make_unique<LimitedStream>(path, make_zstd_stream(std::move(file)));
    case Compression::kNone:
      break;
  }
  return make_plain_stream(std::move(file));
}

}  // namespace fsdp::io
