#include "train/prepare/document_stream.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "io/base/error.h"
#include "io/base/input_file.h"
#include "text/documents/byte_stream.h"

namespace fsdp::train {
namespace {

// A file as it is, in pieces if it is long.
class PlainReader : public io::DocumentReader {
 public:
  PlainReader(const std::filesystem::path& path, int64_t max_bytes)
      : file_(path, io::ErrorKind::kData), max_bytes_(static_cast<uint64_t>(max_bytes)) {}

  bool next(io::Document& document) override {
    if (offset_ >= file_.size()) return false;
    piece_.resize(std::min(max_bytes_, file_.size() - offset_));
    file_.read_at(offset_, piece_.data(), piece_.size());
    document = {piece_, ++num_pieces_, offset_};
    offset_ += piece_.size();
    return true;
  }
  uint64_t bytes_consumed() const override { return offset_; }
  uint64_t num_skipped() const override { return 0; }

 private:
  io::InputFile file_;
  uint64_t max_bytes_;
  std::string piece_;
  uint64_t offset_ = 0;
  uint64_t num_pieces_ = 0;
};

bool is_plain(const std::filesystem::path& path, const ReadOptions& options) {
  return options.bytes == Bytes::kAny && options.documents.separator.empty() &&
         io::container_of(path) == io::Container::kText && io::compression_of(path) == io::Compression::kNone;
}

std::unique_ptr<io::DocumentReader> open_reader(const std::filesystem::path& path, const ReadOptions& options) {
  if (is_plain(path, options)) {
    return std::make_unique<PlainReader>(path, options.documents.max_document_bytes);
  }
  io::DocumentOptions telling = options.documents;
  telling.bad_record = io::BadRecord::kStop;  // so that it says why
  return io::DocumentReader::open(path, telling);
}

}  // namespace

void Skipped::add(const std::string& reason) {
  ++count;
  if (reasons.size() < kMostReasons) reasons.push_back(reason);
}

void Skipped::add(const Skipped& others) {
  count += others.count;
  for (const std::string& reason : others.reasons) {
    if (reasons.size() < kMostReasons) reasons.push_back(reason);
  }
}

DocumentStream::DocumentStream(std::vector<io::InputPart> files, ReadOptions options)
    : files_(std::move(files)), options_(std::move(options)) {}

bool DocumentStream::next(io::Document& document) {
  while (reader_ != nullptr || next_file_ < files_.size()) {
    try {
      if (reader_ == nullptr) reader_ = open_reader(files_[next_file_++].path, options_);
      if (reader_->next(document)) return true;
    } catch (const io::Error& error) {
      if (options_.documents.bad_record == io::BadRecord::kStop || error.kind() != io::ErrorKind::kData) throw;
      skipped_.add(error.what());
      if (reader_ != nullptr) continue;  // where the rest cannot be read, it ends by itself
    }
    if (next_file_ > 0) finished_bytes_ += files_[next_file_ - 1].num_bytes;
    reader_.reset();
  }
  return false;
}

uint64_t DocumentStream::total_bytes() const {
  return std::accumulate(files_.begin(), files_.end(), uint64_t{0},
                         [](uint64_t sum, const io::InputPart& file) { return sum + file.num_bytes; });
}

uint64_t DocumentStream::bytes_consumed() const {
  return finished_bytes_ + (reader_ != nullptr ? reader_->bytes_consumed() : 0);
}

Skipped DocumentStream::take_skipped() { return std::exchange(skipped_, {}); }

}  // namespace fsdp::train
