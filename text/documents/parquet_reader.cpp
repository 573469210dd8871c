#include "text/documents/parquet_reader.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "io/base/input_file.h"
#include "text/documents/parquet_library.h"
#include "text/documents/record_reader.h"
#include "text/documents/utf8.h"

namespace fsdp::io {

namespace {

struct CloseColumn {
  const FsdpParquetPlugin* plugin;
  void operator()(void* column) const { plugin->close(column); }
};

class ParquetReader : public RecordReader {
 public:
  ParquetReader(const std::filesystem::path& path, const DocumentOptions& options, int64_t max_memory)
      : RecordReader(path, options),
        plugin_(parquet_plugin()),
        file_(path, ErrorKind::kData),
        column_(nullptr, {&plugin_}),
        max_memory_(max_memory) {}

  uint64_t bytes_consumed() const override {
    // An estimate; a damaged file may claim any number of rows.
    const double share = num_rows_ > 0 ? static_cast<double>(row_) / static_cast<double>(num_rows_) : 0;
    return static_cast<uint64_t>(static_cast<double>(file_.size()) * std::min(share, 1.0));
  }

 protected:
  bool is_broken() const override { return is_broken_; }

  bool read(Document& document) override {
    if (file_.size() == 0) return false;
    if (column_ == nullptr) open_column();
    if (used_ == num_texts_ && !read_batch()) return false;
    const FsdpParquetText& value = texts_[used_++];
    ++row_;
    if (value.num_bytes < 0) {
      throw bad_row(row_,
                    "got null in column " + in_quotes(options().text_field) + ", expected a string. Drop the row.");
    }
    const std::string_view text(value.data, static_cast<size_t>(value.num_bytes));
    if (text.size() > max_bytes()) {
      throw bad_row(row_, "got a document of " + std::to_string(text.size()) + " bytes, expected at most " +
                              std::to_string(max_bytes()) + ". Split it, or raise the limit.");
    }
    const size_t valid = valid_utf8_prefix(text);
    if (valid < text.size()) {
      throw bad_row(row_, "got bytes that are not UTF-8 at byte " + std::to_string(valid) +
                              " of the text, expected UTF-8. Convert the column.");
    }
    document = {text, row_, 0};
    return true;
  }

 private:
  void open_column() {
    column_.reset(
        plugin_.open(file_.path().c_str(), options().text_field.c_str(), max_memory_, reason_.data(), reason_.size()));
    is_broken_ = column_ == nullptr;
    if (!is_broken_) {
      num_rows_ = plugin_.num_rows(column_.get());
      return;
    }
    throw file_.error("read", "got " + in_quotes(reason_.data()) + ", expected parquet with a column " +
                                  in_quotes(options().text_field) + " of strings. Check the file and the text field.");
  }

  bool read_batch() {
    used_ = num_texts_ = 0;
    const int64_t got = plugin_.next(column_.get(), &texts_, reason_.data(), reason_.size());
    if (got < 0) {
      is_broken_ = true;
      throw bad_row(row_ + 1, "got " + in_quotes(reason_.data()) +
                                  ", expected a readable page. Nothing behind it can be read: fetch the file again.");
    }
    num_texts_ = got;
    return got > 0;
  }

  const FsdpParquetPlugin& plugin_;
  InputFile file_;  // says what is wrong with the path itself; the plug-in opens it once more
  std::unique_ptr<void, CloseColumn> column_;
  int64_t max_memory_;
  std::array<char, 512> reason_ = {};
  const FsdpParquetText* texts_ = nullptr;
  int64_t num_texts_ = 0;
  int64_t used_ = 0;
  uint64_t row_ = 0;
  int64_t num_rows_ = 0;
  bool is_broken_ = false;
};

}  // namespace

std::unique_ptr<DocumentReader> open_parquet_reader(const std::filesystem::path& path, const DocumentOptions& options,
                                                    int64_t max_memory) {
  return std::make_unique<ParquetReader>(path, options, max_memory);
}

}  // namespace fsdp::io
