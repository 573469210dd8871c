#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "text/documents/line_documents.h"
#include "text/documents/line_reader.h"
#include "text/documents/record_reader.h"
#include "text/documents/utf8.h"

namespace fsdp::io {

namespace {

class TextReader : public RecordReader {
 public:
  TextReader(std::unique_ptr<ByteStream> stream, const std::filesystem::path& path, const DocumentOptions& options)
      : RecordReader(path, options),
        // A separator is recognised also where documents must be shorter than it.
        lines_(std::move(stream), path.native(), std::max<uint64_t>(max_bytes(), options.separator.size() + 1)) {}

  uint64_t bytes_consumed() const override { return lines_.bytes_consumed(); }

 protected:
  bool is_broken() const override { return lines_.is_broken(); }

  bool read(Document& document) override {
    if (is_passing_over_) pass_over_rest();
    text_.clear();
    Line line;
    while (lines_.next(line)) {
      if (is_separator(line)) {
        if (hand_out(document)) return true;
        continue;
      }
      append(line);
    }
    return hand_out(document);
  }

 private:
  bool is_separator(const Line& line) const {
    std::string_view text = line.text;
    if (text.ends_with('\r')) text.remove_suffix(1);
    return !options().separator.empty() && text == options().separator;
  }

  void append(const Line& line) {
    if (text_.empty()) {
      first_line_ = line.number;
      offset_ = line.offset;
    }
    // The line feed before a separator is not part of the document.
    if (line.is_too_long || text_.size() + line.text.size() > max_bytes()) {
      is_passing_over_ = true;
      throw bad_record(first_line_, offset_,
                       "got a document of more than " + std::to_string(max_bytes()) +
                           " bytes, expected at most that. Split it, name the line that separates documents, or raise "
                           "the limit.");
    }
    text_.append(line.text);
    if (line.is_ended) text_ += '\n';
  }

  // To the next separator.
  void pass_over_rest() {
    Line line;
    while (lines_.next(line) && !is_separator(line)) {
    }
    is_passing_over_ = false;
  }

  // False, and nothing left, if there is only white space.
  bool hand_out(Document& document) {
    std::string_view text = text_;
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
      text_.clear();
      return false;
    }
    if (!options().separator.empty() && text.ends_with('\n')) text.remove_suffix(text.ends_with("\r\n") ? 2 : 1);
    const size_t valid = valid_utf8_prefix(text);
    if (valid < text.size()) {
      const auto feeds =
          static_cast<uint64_t>(std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(valid), '\n'));
      throw bad_record(first_line_ + feeds, offset_ + valid,
                       "got bytes that are not UTF-8, expected UTF-8. Convert the file.");
    }
    document = {text, first_line_, offset_};
    return true;
  }

  LineReader lines_;
  std::string text_;         // of the document that is being put together
  uint64_t first_line_ = 0;  // of it
  uint64_t offset_ = 0;
  bool is_passing_over_ = false;
};

}  // namespace

std::unique_ptr<DocumentReader> make_text_reader(std::unique_ptr<ByteStream> stream, const std::filesystem::path& path,
                                                 const DocumentOptions& options) {
  return std::make_unique<TextReader>(std::move(stream), path, options);
}

}  // namespace fsdp::io
