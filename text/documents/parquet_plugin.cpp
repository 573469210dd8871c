#include "text/documents/parquet_plugin.h"

#include <arrow/memory_pool.h>
#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/schema.h>

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

using parquet::ByteArray;

constexpr int64_t kBatchRows = 256;
constexpr int kMaxListed = 20;
constexpr uintmax_t kMaxClaim = std::numeric_limits<int32_t>::max();

// One string column, page by page: what is asked for is decompressed when its turn comes.
class ParquetColumn {
 public:
  ParquetColumn(const std::string& path, const std::string& column, int64_t max_memory)
      : pool_(&counted_, max_memory),
        file_(parquet::ParquetFileReader::OpenFile(path, /*memory_map=*/false, rules(path))) {
    const parquet::SchemaDescriptor& schema = *file_->metadata()->schema();
    index_ = schema.ColumnIndex(column);
    if (index_ < 0) throw std::runtime_error("no column '" + column + "' (there are: " + list(schema) + ")");
    const parquet::ColumnDescriptor& described = *schema.Column(index_);
    max_definition_ = described.max_definition_level();
    const bool is_decimal = described.logical_type() != nullptr && described.logical_type()->is_decimal();
    if (described.physical_type() != parquet::Type::BYTE_ARRAY || is_decimal || described.max_repetition_level() > 0) {
      throw std::runtime_error("column '" + column + "' of " +
                               (described.max_repetition_level() > 0 ? "lists"
                                : described.logical_type() != nullptr && !described.logical_type()->is_none()
                                    ? described.logical_type()->ToString()
                                    : parquet::TypeToString(described.physical_type())));
    }
  }

  int64_t num_rows() const { return file_->metadata()->num_rows(); }

  int64_t next(const FsdpParquetText** texts) {
    while (column_ == nullptr || !column_->HasNext()) {
      column_ = nullptr;
      if (next_group_ >= file_->metadata()->num_row_groups()) return 0;
      group_ = file_->RowGroup(next_group_++);
      column_ = std::static_pointer_cast<parquet::ByteArrayReader>(group_->Column(index_));
    }
    int64_t num_values = 0;
    const int64_t num_levels =
        column_->ReadBatch(kBatchRows, definitions_.data(), nullptr, values_.data(), &num_values);
    if (num_levels <= 0) throw std::runtime_error("a page that holds less than it says");
    int64_t used = 0;
    for (int64_t i = 0; i < num_levels; ++i) {
      if (max_definition_ > 0 && definitions_[i] < max_definition_) {
        texts_[i] = {nullptr, -1};
        continue;
      }
      if (used >= num_values) throw std::runtime_error("a page with fewer values than rows");
      const ByteArray& value = values_[used++];
      texts_[i] = {reinterpret_cast<const char*>(value.ptr), static_cast<int64_t>(value.len)};
    }
    *texts = texts_.data();
    return num_levels;
  }

 private:
  parquet::ReaderProperties rules(const std::string& path) {
    parquet::ReaderProperties properties(&pool_);
    // A short file must not make Thrift allocate what it only claims: nothing in it is longer than all of it.
    const auto num_bytes = static_cast<int64_t>(std::min<uintmax_t>(std::filesystem::file_size(path), kMaxClaim));
    const auto cap = [&](int32_t limit) { return static_cast<int32_t>(std::clamp<int64_t>(num_bytes, 1, limit)); };
    properties.set_thrift_string_size_limit(cap(properties.thrift_string_size_limit()));
    properties.set_thrift_container_size_limit(cap(properties.thrift_container_size_limit()));
    properties.enable_buffered_stream();
    properties.set_buffer_size(int64_t{1} << 18);
    properties.set_page_checksum_verification(true);
    return properties;
  }

  static std::string list(const parquet::SchemaDescriptor& schema) {
    std::string names;
    for (int i = 0; i < std::min(schema.num_columns(), kMaxListed); ++i) {
      names += (i == 0 ? "" : ", ") + schema.Column(i)->path()->ToDotString();
    }
    return names + (schema.num_columns() > kMaxListed ? ", ..." : "");
  }

  arrow::ProxyMemoryPool counted_{arrow::default_memory_pool()};  // what this file holds, not the whole process
  arrow::CappedMemoryPool pool_;
  std::unique_ptr<parquet::ParquetFileReader> file_;
  std::shared_ptr<parquet::RowGroupReader> group_;
  std::shared_ptr<parquet::ByteArrayReader> column_;
  int index_ = -1;
  int16_t max_definition_ = 0;
  int next_group_ = 0;
  std::array<int16_t, kBatchRows> definitions_ = {};
  std::array<ByteArray, kBatchRows> values_ = {};
  std::array<FsdpParquetText, kBatchRows> texts_ = {};
};

void say(const char* reason, char* error, size_t error_bytes) {
  if (error_bytes == 0) return;
  const std::string text = std::string(reason).substr(0, error_bytes - 1);
  error[text.copy(error, error_bytes - 1)] = '\0';
}

// `function`, or `failed` and the words of what it threw.
template <class Result, class Function>
Result guard(const Function& function, Result failed, char* error, size_t error_bytes) noexcept {
  try {
    return function();
  } catch (const std::exception& reason) {
    say(reason.what(), error, error_bytes);
  } catch (...) {
    say("an unknown exception", error, error_bytes);
  }
  return failed;
}

void* open_column(const char* path, const char* column, int64_t max_memory, char* error, size_t error_bytes) {
  return guard<void*>([&]() -> void* { return new ParquetColumn(path, column, max_memory); }, nullptr, error,
                      error_bytes);
}

int64_t count_rows(const void* file) { return static_cast<const ParquetColumn*>(file)->num_rows(); }

int64_t next_rows(void* file, const FsdpParquetText** texts, char* error, size_t error_bytes) {
  return guard<int64_t>([&] { return static_cast<ParquetColumn*>(file)->next(texts); }, -1, error, error_bytes);
}

void close_column(void* file) { delete static_cast<ParquetColumn*>(file); }

}  // namespace

extern "C" __attribute__((visibility("default"))) const FsdpParquetPlugin* fsdp_parquet_plugin() {
  static const FsdpParquetPlugin plugin = {kFsdpParquetVersion, open_column, count_rows, next_rows, close_column};
  return &plugin;
}
