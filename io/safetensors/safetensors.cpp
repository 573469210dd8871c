#include "io/safetensors/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "io/base/json.h"

namespace fsdp::io {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little endian; so are the machines we know");

constexpr uint64_t kMinDirectTensorBytes = uint64_t{1} << 18;  // less is not worth the trip
constexpr size_t kMaxTensors = size_t{1} << 20;

// numel * item size, or nothing if a size is negative or the product does not fit a signed 64-bit number.
std::optional<uint64_t> checked_bytes(const std::vector<int64_t>& shape, DType dtype) {
  int64_t bytes = static_cast<int64_t>(item_size(dtype));
  for (int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

// Turns one header value into an entry. Errors carry the file through `fail`.
class EntryParser {
 public:
  EntryParser(const InputFile& file, const std::string& name) : file_(file), name_(name) {}

  TensorEntry parse(const nlohmann::json& value) const {
    if (!value.is_object() || value.size() != 3)
      fail("got no {dtype, shape, data_offsets}, expected exactly these keys");
    TensorEntry entry{.name = name_, .dtype = dtype(member(value, "dtype")), .shape = {}, .begin = 0, .end = 0};
    const nlohmann::json& shape = member(value, "shape");
    if (!shape.is_array()) fail("got a shape that is no list, expected a list of sizes");
    if (shape.size() > kMaxRank) fail("got " + std::to_string(shape.size()) + " dimensions, expected at most 8");
    for (const auto& size : shape) entry.shape.push_back(static_cast<int64_t>(number(size, "shape")));
    const nlohmann::json& offsets = member(value, "data_offsets");
    if (!offsets.is_array() || offsets.size() != 2) fail("got no pair as data_offsets, expected [begin, end]");
    entry.begin = number(offsets[0], "data_offsets");
    entry.end = number(offsets[1], "data_offsets");
    check_size(entry);
    return entry;
  }

 private:
  [[noreturn]] void fail(const std::string& detail) const {
    throw file_.error("safetensors", "tensor " + in_quotes(name_) + ": " + detail + ". The file is damaged.");
  }

  const nlohmann::json& member(const nlohmann::json& value, const char* key) const {
    const auto found = value.find(key);
    if (found == value.end()) fail("got no \"" + std::string(key) + "\", expected one");
    return *found;
  }

  DType dtype(const nlohmann::json& value) const {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump().substr(0, 40);
    const std::optional<DType> known = value.is_string() ? dtype_of(text) : std::nullopt;
    if (!known)
      fail("got dtype " + in_quotes(text) + ", expected one of BOOL, U8..I64, F16, BF16, F32, F64, F8_E4M3, F8_E5M2");
    return *known;
  }

  uint64_t number(const nlohmann::json& value, const char* key) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
      fail("got " + in_quotes(value.dump().substr(0, 40)) + " in " + key + ", expected an integer from 0 to 2^63-1");
    }
    return value.get<uint64_t>();
  }

  void check_size(const TensorEntry& entry) const {
    const std::optional<uint64_t> bytes = checked_bytes(entry.shape, entry.dtype);
    if (!bytes) fail("got a shape whose product overflows, expected at most 2^63-1 bytes");
    if (entry.end < entry.begin || entry.end - entry.begin != *bytes) {
      fail("got data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "], expected " +
           std::to_string(*bytes) + " bytes from dtype and shape");
    }
  }

  const InputFile& file_;
  const std::string& name_;
};

std::string read_header(const InputFile& file) {
  if (file.size() < kHeaderLengthBytes) {
    throw file.error("safetensors", "got " + std::to_string(file.size()) +
                                        " bytes, expected at least 8. The file is truncated or no safetensors file.");
  }
  uint64_t length = 0;
  file.read_at(0, &length, kHeaderLengthBytes);
  if (length > kMaxHeaderBytes || length > file.size() - kHeaderLengthBytes) {
    throw file.error("safetensors", "got a header of " + std::to_string(length) + " bytes in a file of " +
                                        std::to_string(file.size()) +
                                        ", expected it to fit (limit 100000000). The file is truncated or no "
                                        "safetensors file.");
  }
  std::string header(length, '\0');
  file.read_at(kHeaderLengthBytes, header.data(), header.size());
  if (header.empty() || header.front() != '{') {
    throw file.error("safetensors",
                     "got a header that does not start with '{' at offset 8, expected JSON. The file is "
                     "damaged or no safetensors file.");
  }
  return header;
}

std::map<std::string, std::string> parse_metadata(const InputFile& file, const nlohmann::json& value) {
  if (!value.is_object()) throw file.error("safetensors", "got a __metadata__ that is no object, expected one.");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      throw file.error("safetensors", "got no string as __metadata__ " + in_quotes(key) + ", expected a string.");
    }
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile file(InputFile(path, ErrorKind::kModel));
  file.parse_header();
  return file;
}

void SafetensorsFile::parse_header() {
  const std::string text = read_header(file_);
  data_begin_ = kHeaderLengthBytes + text.size();
  const JsonLimits limits{.max_bytes = kMaxHeaderBytes, .max_depth = 8, .kind = ErrorKind::kModel};
  const nlohmann::json header = parse_json(text, path().native(), limits);
  if (header.size() > kMaxTensors + 1) {
    throw file_.error("safetensors", "got " + std::to_string(header.size()) + " tensors, expected at most 2^20.");
  }
  for (const auto& [name, value] : header.items()) {
    if (name == kHeaderMetadataKey) {
      metadata_ = parse_metadata(file_, value);
    } else {
      tensors_.push_back(EntryParser(file_, name).parse(value));
    }
  }
  // Empty tensors come before the one that starts at the same byte.
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_layout(file_.size() - data_begin_);
  for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

void SafetensorsFile::check_layout(uint64_t data_bytes) const {
  uint64_t expected = 0;
  for (const TensorEntry& entry : tensors_) {
    if (entry.begin != expected) {
      throw file_.error("safetensors", "tensor " + in_quotes(entry.name) + ": got its data at byte " +
                                           std::to_string(entry.begin) + ", expected " + std::to_string(expected) +
                                           " (no holes, no overlap). The file is damaged.");
    }
    expected = entry.end;
  }
  if (expected != data_bytes) {
    throw file_.error("safetensors", "got " + std::to_string(data_bytes) + " bytes of data, expected " +
                                         std::to_string(expected) + ". The file is truncated or damaged.");
  }
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

SafetensorsFile::Bytes SafetensorsFile::bytes_of(const TensorEntry& entry, int64_t first_element,
                                                 int64_t num_elements) const {
  const int64_t numel = entry.numel();
  if (first_element < 0 || num_elements < 0 || first_element > numel || num_elements > numel - first_element) {
    throw Error(ErrorKind::kUsage, "[read] " + in_quotes(path().native()) + ": tensor " + in_quotes(entry.name) +
                                       ": got elements " + std::to_string(first_element) + " + " +
                                       std::to_string(num_elements) + ", expected a range inside " +
                                       std::to_string(numel) + ".");
  }
  const uint64_t size = item_size(entry.dtype), begin = data_begin_ + entry.begin;
  return {begin + static_cast<uint64_t>(first_element) * size,
          begin + static_cast<uint64_t>(first_element + num_elements) * size};
}

void SafetensorsFile::read(const TensorEntry& entry, int64_t first_element, int64_t num_elements, void* out) const {
  const auto [begin, end] = bytes_of(entry, first_element, num_elements);
  file_.read_at(begin, out, end - begin);
}

const char* SafetensorsFile::read_past_cache(Bytes bytes, const AlignedBuffer& scratch) const {
  const uint64_t size = bytes.end - bytes.begin, before = bytes.begin % kDirectAlignment;
  if (size < kMinDirectTensorBytes || file_.is_cached(bytes.begin, size)) return nullptr;
  return direct_.read(bytes.begin - before, before + size, scratch.data()) ? scratch.data() + before : nullptr;
}

}  // namespace fsdp::io
