#include "text/documents/record_reader.h"

#include "io/base/error.h"
#include "text/documents/byte_stream.h"

namespace fsdp::io {

RecordReader::RecordReader(const std::filesystem::path& path, const DocumentOptions& options)
    : path_(in_quotes(path.native())),
      byte_(compression_of(path) == Compression::kNone ? "byte " : "decompressed byte "),
      options_(options) {}

bool RecordReader::next(Document& document) {
  while (!is_finished_) {
    try {
      if (read(document)) {
        has_records_ = true;
        return true;
      }
      is_finished_ = true;
      if (!has_records_) throw no_document();
    } catch (const Error& error) {
      has_records_ = true;
      is_finished_ = is_finished_ || is_broken();
      if (options_.bad_record == BadRecord::kStop || error.kind() != ErrorKind::kData) throw;
      ++num_skipped_;
    }
  }
  return false;
}

Error RecordReader::bad_record(uint64_t line, uint64_t offset, const std::string& detail) const {
  return Error(ErrorKind::kData, "[read] " + path_ + ":" + std::to_string(line) + ": at " + byte_ +
                                     std::to_string(offset) + " " + detail);
}

Error RecordReader::bad_row(uint64_t row, const std::string& detail) const {
  return Error(ErrorKind::kData, "[read] " + path_ + ": row " + std::to_string(row) + ": " + detail);
}

Error RecordReader::no_document() const {
  return Error(ErrorKind::kData, "[read] " + path_ +
                                     ": got a file that holds no document, expected at least one. Leave it out, or "
                                     "skip bad records.");
}

}  // namespace fsdp::io
