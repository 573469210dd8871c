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
      return make_gzip_stream(std::move(file));
    case Compression::kZstd:
      return make_zstd_stream(std::move(file));
    case Compression::kNone:
      break;
  }
  return make_plain_stream(std::move(file));
}

}  // namespace fsdp::io
