#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/documents/document_reader.h"

namespace fsdp::train {

// How files are read.
enum class Bytes { kText, kAny };  // kAny: plain text files are taken as they are, UTF-8 or not
struct ReadOptions {
  io::DocumentOptions documents;
  Bytes bytes = Bytes::kText;
};

// Records that were passed over: how many, and the first reasons.
struct Skipped {
  static constexpr size_t kMostReasons = 3;

  int64_t count = 0;
  std::vector<std::string> reasons;

  void add(const std::string& reason);
  void add(const Skipped& others);
};

// The documents of several files, one after another, in bounded memory. Not thread-safe.
class DocumentStream {
 public:
  DocumentStream(std::vector<io::InputPart> files, ReadOptions options);

  // False at the end. Throws as io::DocumentReader; bad records are passed over or thrown as the options say.
  bool next(io::Document& document);
  // Of the last document. Stays where it is.
  const io::InputPart& file() const { return files_[next_file_ - 1]; }

  // Of the files on disk: in all, and so far.
  uint64_t total_bytes() const;
  uint64_t bytes_consumed() const;
  // Since the call before.
  Skipped take_skipped();

 private:
  std::vector<io::InputPart> files_;
  ReadOptions options_;
  size_t next_file_ = 0;
  std::unique_ptr<io::DocumentReader> reader_;
  uint64_t finished_bytes_ = 0;
  Skipped skipped_;
};

}  // namespace fsdp::train
