#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::io {

// How a file holds documents: .parquet, .jsonl and .json (an object a line), anything else is text. The last two may
// also be compressed: .gz, .zst.
enum class Container { kText, kJsonLines, kParquet };

// What happens to a record that can not be read: an error, or it is passed over and counted. A broken compressed stream
// has no next record, so the rest of its file is passed over and counted once.
enum class BadRecord { kStop, kSkip };

struct DocumentOptions {
  std::string text_field = "text";  // of JSON objects and parquet columns; "a.b" is field b of object a
  std::string separator;            // text: a line that ends a document, as "<|endoftext|>"; "": one document a file
  BadRecord bad_record = BadRecord::kStop;
  bool whole_lines = false;                        // JSON lines: the object itself instead of its text field
  int64_t max_document_bytes = int64_t{64} << 20;  // of a document, and of a JSON line; a longer one is a bad record
};

struct InputPart {
  std::filesystem::path path;
  uint64_t num_bytes = 0;  // on disk
};

// The files that `patterns` name, sorted byte by byte, each once (links followed). A pattern is
//   a file       taken as it is;
//   a folder     all files below it whose names end with one of `extensions` (none given: all), without names that
//   start
//                with a dot and without links to folders;
//   a glob       * ? [] within a name, ** for any number of folders; files are taken, folders searched as above.
// Throws Error(kData) naming a pattern that leads to no file, Error(kUsage) if there is no pattern.
std::vector<InputPart> find_inputs(const std::vector<std::string>& patterns,
                                   const std::vector<std::string>& extensions);

// What a reader makes of files found in a folder: ".txt", ".jsonl", ".json", ".parquet", and those with .gz and .zst.
const std::vector<std::string>& document_extensions();

// By the end of its name, compression set aside.
Container container_of(const std::filesystem::path& path);

struct Document {
  std::string_view text;  // UTF-8, may be empty (never in a text file); valid until the next call
  uint64_t record = 0;    // line where it starts, or row; from 1
  uint64_t offset = 0;    // of its first byte in the (decompressed) file; 0 in a parquet file
};

// Streams one file in bounded memory, whatever its size. Not thread-safe. A byte order mark is left out.
class DocumentReader {
 public:
  // Throws Error(kData) for a missing file, a folder, a parquet file that is none; Error(kUsage) for impossible
  // options.
  static std::unique_ptr<DocumentReader> open(const std::filesystem::path& path, const DocumentOptions& options);

  virtual ~DocumentReader() = default;
  // False at the end. A file that holds no document is a bad record too. Throws Error(kData) naming file, line or row,
  // and byte, after which the next call goes on behind that record; Error(kFileSystem), also under kSkip, if the system
  // fails.
  virtual bool next(Document& document) = 0;
  // Of the file on disk, for progress; an estimate for parquet.
  virtual uint64_t bytes_consumed() const = 0;
  virtual uint64_t num_skipped() const = 0;
};

}  // namespace fsdp::io
