#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/io/temporary_folder.h"
#include "text/documents/document_reader.h"

namespace fsdp::io {

struct OwnedDocument {
  std::string text;
  uint64_t record = 0;
  uint64_t offset = 0;
};

// What a reader gave before its end, or before it threw.
struct Reading {
  std::vector<OwnedDocument> documents;
  uint64_t num_skipped = 0;
  uint64_t bytes_consumed = 0;
  Caught error;

  std::vector<std::string> texts() const {
    std::vector<std::string> all;
    for (const OwnedDocument& document : documents) all.push_back(document.text);
    return all;
  }
};

inline Reading read_documents(const std::filesystem::path& path, const DocumentOptions& options = {}) {
  Reading reading;
  reading.error = catch_error([&] {
    const std::unique_ptr<DocumentReader> reader = DocumentReader::open(path, options);
    Document document;
    while (reader->next(document)) {
      reading.documents.push_back({std::string(document.text), document.record, document.offset});
      reading.num_skipped = reader->num_skipped();
    }
    reading.num_skipped = reader->num_skipped();
    reading.bytes_consumed = reader->bytes_consumed();
  });
  return reading;
}

// The same with `content` in a file called `name`.
inline Reading read_content(const std::string& name, std::string_view content, const DocumentOptions& options = {}) {
  const TemporaryFolder folder;
  write_text(folder / name, content);
  return read_documents(folder / name, options);
}

}  // namespace fsdp::io
