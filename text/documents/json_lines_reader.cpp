#include <string>
#include <string_view>
#include <utility>

#include "text/documents/json_field.h"
#include "text/documents/line_documents.h"
#include "text/documents/line_reader.h"
#include "text/documents/record_reader.h"

namespace fsdp::io {

namespace {

class JsonLinesReader : public RecordReader {
 public:
  JsonLinesReader(std::unique_ptr<ByteStream> stream, const std::filesystem::path& path, const DocumentOptions& options)
      : RecordReader(path, options),
        lines_(std::move(stream), path.native(), max_bytes()),
        field_(options.whole_lines ? "" : options.text_field) {}

  uint64_t bytes_consumed() const override { return lines_.bytes_consumed(); }

 protected:
  bool is_broken() const override { return lines_.is_broken(); }

  bool read(Document& document) override {
    Line line;
    while (lines_.next(line)) {
      if (line.is_too_long) {
        throw bad_record(line.number, line.offset,
                         "got a line of more than " + std::to_string(max_bytes()) +
                             " bytes, expected at most that. Split the record, or raise the limit.");
      }
      if (line.text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      if (line.text.ends_with('\r')) line.text.remove_suffix(1);
      JsonField::Problem problem;
      if (!field_.find(line.text, document.text, problem)) {
        throw bad_record(line.number, line.offset + problem.at, problem.detail);
      }
      document.record = line.number;
      document.offset = line.offset;
      return true;
    }
    return false;
  }

 private:
  LineReader lines_;
  JsonField field_;
};

}  // namespace

std::unique_ptr<DocumentReader> make_json_lines_reader(std::unique_ptr<ByteStream> stream,
                                                       const std::filesystem::path& path,
                                                       const DocumentOptions& options) {
  return std::make_unique<JsonLinesReader>(std::move(stream), path, options);
}

}  // namespace fsdp::io
