#pragma once

#include <cstdint>
#include <string>

#include "io/base/error.h"
#include "text/documents/document_reader.h"

namespace fsdp::io {

// What all readers share: the policy for bad records, their count, and the words of an error.
class RecordReader : public DocumentReader {
 public:
  bool next(Document& document) final;
  uint64_t num_skipped() const final { return num_skipped_; }

 protected:
  RecordReader(const std::filesystem::path& path, const DocumentOptions& options);

  // The next document, or false at the end. Throws Error(kData) for a bad record, and can be called again after that
  // unless is_broken().
  virtual bool read(Document& document) = 0;
  virtual bool is_broken() const = 0;

  const DocumentOptions& options() const { return options_; }
  uint64_t max_bytes() const { return static_cast<uint64_t>(options_.max_document_bytes); }
  // `[read] 'path':line: at byte offset detail`.
  Error bad_record(uint64_t line, uint64_t offset, const std::string& detail) const;
  // `[read] 'path': row N: detail`.
  Error bad_row(uint64_t row, const std::string& detail) const;

 private:
  Error no_document() const;

  std::string path_;
  std::string byte_;  // what a byte is called: those of compressed files are counted behind decompression
  DocumentOptions options_;
  uint64_t num_skipped_ = 0;
  bool has_records_ = false;  // good or bad
  bool is_finished_ = false;
};

}  // namespace fsdp::io
