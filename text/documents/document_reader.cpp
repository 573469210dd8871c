#include "text/documents/document_reader.h"

#include "io/base/error.h"
#include "text/documents/byte_stream.h"
#include "text/documents/line_documents.h"
#include "text/documents/parquet_reader.h"

namespace fsdp::io {

namespace {

Error usage_error(const std::string& detail) { return Error(ErrorKind::kUsage, "[read] " + detail); }

void check_options(const DocumentOptions& options) {
  if (options.max_document_bytes < 1 || options.max_document_bytes > (int64_t{1} << 31)) {
    throw usage_error("max_document_bytes: got " + std::to_string(options.max_document_bytes) +
                      ", expected 1 to 2147483648.");
  }
  if (options.separator.find_first_of("\r\n") != std::string::npos) {
    throw usage_error("separator: got " + in_quotes(options.separator) + ", expected the text of one line.");
  }
  const std::string& field = options.text_field;
  if (field.empty() || field.front() == '.' || field.back() == '.' || field.find("..") != std::string::npos) {
    throw usage_error("text_field: got " + in_quotes(field) + ", expected a name, or names with dots between them.");
  }
}

}  // namespace

const std::vector<std::string>& document_extensions() {
  static const std::vector<std::string> extensions = {".txt",       ".txt.gz", ".txt.zst", ".jsonl",    ".jsonl.gz",
                                                      ".jsonl.zst", ".json",   ".json.gz", ".json.zst", ".parquet"};
  return extensions;
}

Container container_of(const std::filesystem::path& path) {
  const std::filesystem::path name = compression_of(path) == Compression::kNone ? path : path.stem();
  const std::string extension = name.extension().native();
  if (extension == ".jsonl" || extension == ".json") return Container::kJsonLines;
  return extension == ".parquet" ? Container::kParquet : Container::kText;
}

std::unique_ptr<DocumentReader> DocumentReader::open(const std::filesystem::path& path,
                                                     const DocumentOptions& options) {
  check_options(options);
  switch (container_of(path)) {
    case Container::kJsonLines:
      return make_json_lines_reader(open_byte_stream(path), path, options);
    case Container::kParquet:
      return open_parquet_reader(path, options);
    case Container::kText:
      break;
  }
  return make_text_reader(open_byte_stream(path), path, options);
}

}  // namespace fsdp::io
