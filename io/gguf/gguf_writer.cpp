#include "io/gguf/gguf_writer.h"

#include <cstring>

#include "io/base/error.h"

namespace fsdp::io {

namespace {

constexpr uint64_t kTensorAlignment = 32;  // of each tensor's data, where the metadata names none

// Numbers that the format gives to the types of metadata.
enum class ValueType : uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9 };

class Header {
 public:
  template <class Number>
  void number(Number value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));  // little-endian, as all we run on
  }
  void type(ValueType type) { number(static_cast<uint32_t>(type)); }
  void text(const std::string& text) {
    number(static_cast<uint64_t>(text.size()));
    bytes_ += text;
  }

  void value(bool value) {
    type(ValueType::kBool);
    number(static_cast<uint8_t>(value ? 1 : 0));
  }
  void value(uint32_t value) {
    type(ValueType::kU32);
    number(value);
  }
  void value(float value) {
    type(ValueType::kF32);
    number(value);
  }
  void value(const std::string& value) {
    type(ValueType::kString);
    text(value);
  }
  void value(const std::vector<std::string>& values) {
    array(ValueType::kString, values.size());
    for (const std::string& value : values) text(value);
  }
  void value(const std::vector<int32_t>& values) {
    array(ValueType::kI32, values.size());
    for (const int32_t value : values) number(value);
  }

  void pad() { bytes_.resize((bytes_.size() + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment, '\0'); }
  const std::string& bytes() const { return bytes_; }

 private:
  void array(ValueType element, size_t size) {
    type(ValueType::kArray);
    type(element);
    number(static_cast<uint64_t>(size));
  }

  std::string bytes_ = "GGUF";
};

int64_t rows_of(const GgufTensor& tensor) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  return rows;
}

int64_t row_bytes(const GgufTensor& tensor) { return bytes_of(tensor.type, tensor.shape.back()); }

void check_gguf_tensor(const std::filesystem::path& path, const GgufTensor& tensor) {
  const auto refuse = [&](const std::string& detail) {
    throw Error(ErrorKind::kUsage,
                "[gguf] " + in_quotes(path.native()) + ": tensor " + in_quotes(tensor.name) + ": " + detail);
  };
  if (tensor.shape.empty() || tensor.shape.size() > 4)
    refuse("got " + std::to_string(tensor.shape.size()) + " dimensions, expected 1 to 4.");
  if (tensor.shape.back() % block_elements(tensor.type) != 0)
    refuse("got rows of " + std::to_string(tensor.shape.back()) + " elements, expected a multiple of " +
           std::to_string(block_elements(tensor.type)) + " for " + std::string(name(tensor.type)) + ".");
}

}  // namespace

GgufWriter::GgufWriter(const std::filesystem::path& path, const GgufMetadata& metadata, std::vector<GgufTensor> tensors)
    : tensors_(std::move(tensors)), file_(path) {
  Header header;
  header.number(uint32_t{3});
  header.number(static_cast<uint64_t>(tensors_.size()));
  header.number(static_cast<uint64_t>(metadata.size()));
  for (const auto& [key, value] : metadata) {
    header.text(key);
    std::visit([&](const auto& held) { header.value(held); }, value);
  }
  uint64_t offset = 0;  // from the end of the header
  for (const GgufTensor& tensor : tensors_) {
    check_gguf_tensor(path, tensor);
    header.text(tensor.name);
    header.number(static_cast<uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size)
      header.number(static_cast<uint64_t>(*size));
    header.number(static_cast<uint32_t>(tensor.type));
    header.number(offset);
    offsets_.push_back(offset);
    offset += static_cast<uint64_t>(rows_of(tensor) * row_bytes(tensor));
    offset = (offset + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
    missing_rows_ += rows_of(tensor);
  }
  header.pad();
  for (uint64_t& begin : offsets_) begin += header.bytes().size();
  file_.write(header.bytes());
  // Readers expect padding after the last tensor too.
  if (offset > 0) file_.write_at(header.bytes().size() + offset - 1, "", 1);
}

void GgufWriter::write_row(size_t tensor, int64_t row, const float* values) {
  const GgufTensor& to = tensors_[tensor];
  const auto size = static_cast<size_t>(row_bytes(to));
  encoded_.resize(size);
  encode_row(to.type, values, to.shape.back(), encoded_.data());
  file_.write_at(offsets_[tensor] + static_cast<uint64_t>(row) * size, encoded_.data(), size);
  --missing_rows_;
}

void GgufWriter::commit() {
  if (missing_rows_ != 0)
    throw Error(ErrorKind::kUsage, "[gguf] " + in_quotes(file_.target().native()) + ": got " +
                                       std::to_string(missing_rows_) + " rows too few, expected each once.");
  file_.commit();
}

}  // namespace fsdp::io
