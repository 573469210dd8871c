#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "io/base/error.h"
#include "io/base/input_file.h"
#include "io/base/json.h"
#include "io/checkpoint/checkpoint_manifest.h"
#include "io/checkpoint/checkpoint_rules.h"

namespace fsdp::io {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kDigestBegin = R"("digest":")";
constexpr std::string_view kDigestEnd = "\"}\n";
constexpr size_t kHashDigits = 32;

[[noreturn]] void fail(std::string_view origin, const std::string& detail, const std::string& advice = kChooseAnother) {
  throw Error(ErrorKind::kModel, "[manifest] " + in_quotes(origin) + ": " + detail + "." + advice);
}

// 16 lower-case hexadecimal digits.
std::optional<uint64_t> hex_number(std::string_view digits) {
  uint64_t number = 0;
  for (char c : digits) {
    const bool is_letter = c >= 'a' && c <= 'f';
    if (!is_letter && (c < '0' || c > '9')) return std::nullopt;
    number = number << 4 | static_cast<uint64_t>(is_letter ? c - 'a' + 10 : c - '0');
  }
  return number;
}

std::optional<Hash128> hash_of(std::string_view text) {
  if (text.size() != kHashDigits) return std::nullopt;
  const std::optional<uint64_t> high = hex_number(text.substr(0, kHashDigits / 2));
  const std::optional<uint64_t> low = hex_number(text.substr(kHashDigits / 2));
  if (!high || !low) return std::nullopt;
  return Hash128{*high, *low};
}

// Everything up to the digits is what the digest is of: one wrong bit anywhere, and nothing is parsed at all.
void check_digest(std::string_view text, std::string_view origin) {
  if (text.size() > kMaxManifestBytes) {
    fail(origin,
         "got " + std::to_string(text.size()) + " bytes, expected at most " + std::to_string(kMaxManifestBytes));
  }
  const size_t tail = kHashDigits + kDigestEnd.size();
  const std::string_view body = text.substr(0, text.size() < tail ? 0 : text.size() - tail);
  const std::optional<Hash128> stored =
      body.ends_with(kDigestBegin) ? hash_of(text.substr(body.size(), kHashDigits)) : std::nullopt;
  if (!stored || !text.ends_with(kDigestEnd)) {
    fail(origin, "got " + std::to_string(text.size()) +
                     " bytes that do not end with a digest, expected a whole manifest. It is damaged or cut off");
  }
  const Hash128 found = hash128(body.data(), body.size());
  if (found != *stored) {
    fail(origin, "got the digest " + hash_text(found) + ", expected " + hash_text(*stored) + ". The file is damaged");
  }
}

// Reads the members that the format names; check_manifest() judges the values.
class Parser {
 public:
  explicit Parser(std::string_view origin) : origin_(origin) {}

  CheckpointManifest parse(const Json& root) {
    check_head(root);
    CheckpointManifest manifest;
    manifest.step = integer(root, "step");
    manifest.world_size = integer(root, "world_size");
    manifest.created = text(root, "created");
    manifest.writer = text(root, "writer");
    manifest.values = member(root, "values");
    for (const Json& value : list(root, "files", kMaxCheckpointEntries)) manifest.files.push_back(file(value));
    for (const Json& value : list(root, "tensors", kMaxCheckpointEntries)) manifest.tensors.push_back(tensor(value));
    return manifest;
  }

 private:
  [[noreturn]] void refuse(const std::string& detail) const { fail(origin_, where_ + detail); }

  static std::string shown(const Json& value) {
    return in_quotes(value.is_structured() ? std::string(value.type_name()) : value.dump().substr(0, 60));
  }

  const Json& member(const Json& object, const char* key) const {
    if (!object.is_object()) refuse("got " + shown(object) + ", expected an object");
    const auto found = object.find(key);
    if (found == object.end()) refuse("got no \"" + std::string(key) + "\", expected one");
    return *found;
  }

  int64_t integer(const Json& value, const std::string& key) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
      refuse("got " + shown(value) + " in \"" + key + "\", expected an integer from 0 to 2^63-1");
    }
    return value.get<int64_t>();
  }
  int64_t integer(const Json& object, const char* key) const { return integer(member(object, key), std::string(key)); }

  std::string text(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    if (!value.is_string()) refuse("got " + shown(value) + " as \"" + key + "\", expected a string");
    return value.get<std::string>();
  }

  const Json& list(const Json& object, const char* key, size_t max_size) const {
    const Json& value = member(object, key);
    if (!value.is_array()) refuse("got " + shown(value) + " as \"" + key + "\", expected a list");
    if (value.size() > max_size) {
      refuse("got " + std::to_string(value.size()) + " items in \"" + key + "\", expected at most " +
             std::to_string(max_size));
    }
    return value;
  }

  void check_head(const Json& root) const {
    if (const std::string format = text(root, "format"); format != "fsdp-checkpoint") {
      refuse("got format " + in_quotes(format) + ", expected 'fsdp-checkpoint'");
    }
    if (const int64_t version = integer(root, "version"); version != kCheckpointVersion) {
      fail(origin_, "got version " + std::to_string(version) + ", expected " + std::to_string(kCheckpointVersion),
           " Use the program that wrote it, or choose another checkpoint.");
    }
    if (const int64_t bytes = integer(root, "chunk_bytes"); bytes != static_cast<int64_t>(kChunkBytes)) {
      refuse("got chunk_bytes " + std::to_string(bytes) + ", expected " + std::to_string(kChunkBytes));
    }
  }

  CheckpointFile file(const Json& value) {
    where_ = "\"files\": ";
    CheckpointFile file{.name = text(value, "name"), .bytes = 0, .chunks = {}};
    where_ = "file " + in_quotes(file.name) + ": ";
    file.bytes = static_cast<uint64_t>(integer(value, "bytes"));
    const Json& chunks = list(value, "chunks", num_chunks(file.bytes));
    file.chunks.reserve(chunks.size());
    for (const Json& chunk : chunks) {
      const std::optional<Hash128> hash =
          chunk.is_string() ? hash_of(chunk.get_ref<const std::string&>()) : std::nullopt;
      if (!hash) refuse("got " + shown(chunk) + " in \"chunks\", expected 32 lower-case hexadecimal digits");
      file.chunks.push_back(*hash);
    }
    where_.clear();
    return file;
  }

  CheckpointTensor tensor(const Json& value) {
    where_ = "\"tensors\": ";
    CheckpointTensor tensor{.name = text(value, "name"), .dtype = {}, .shape = {}, .parts = {}};
    where_ = "tensor " + in_quotes(tensor.name) + ": ";
    const std::string dtype = text(value, "dtype");
    const std::optional<DType> known = dtype_of(dtype);
    if (!known) refuse("got dtype " + in_quotes(dtype) + ", expected a name of the safetensors format");
    tensor.dtype = *known;
    for (const Json& size : list(value, "shape", kMaxCheckpointRank)) {
      tensor.shape.push_back(integer(size, std::string("shape")));
    }
    for (const Json& part : list(value, "parts", kMaxManifestValues)) tensor.parts.push_back(this->part(part));
    where_.clear();
    return tensor;
  }

  CheckpointPart part(const Json& value) const {
    if (!value.is_array() || value.size() != 4) {
      refuse("got " + shown(value) + " in \"parts\", expected [file, offset, begin, end]");
    }
    const std::string key = "parts";
    const int64_t file = integer(value[0], key);
    if (file >= static_cast<int64_t>(kMaxCheckpointEntries)) {
      refuse("got a part in file number " + std::to_string(file) + ", expected one below 2^20");
    }
    return {.file = static_cast<uint32_t>(file),
            .offset = static_cast<uint64_t>(integer(value[1], key)),
            .begin = integer(value[2], key),
            .end = integer(value[3], key)};
  }

  std::string_view origin_;
  std::string where_;  // starts the detail of a message
};

}  // namespace

CheckpointManifest parse_manifest(std::string_view text, std::string_view origin) {
  check_digest(text, origin);
  const JsonLimits limits{.max_bytes = kMaxManifestBytes,
                          .max_depth = kMaxManifestDepth,
                          .max_values = kMaxManifestValues,
                          .kind = ErrorKind::kModel};
  CheckpointManifest manifest = Parser(origin).parse(parse_json(text, origin, limits));
  check_manifest(manifest, origin, ErrorKind::kModel);
  return manifest;
}

CheckpointManifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestName;
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown) && !unknown) {
    fail(path.native(), "got no such file, expected one. The checkpoint was never finished");
  }
  const InputFile file(path, ErrorKind::kModel);
  if (file.size() > kMaxManifestBytes) {
    fail(path.native(),
         "got " + std::to_string(file.size()) + " bytes, expected at most " + std::to_string(kMaxManifestBytes));
  }
  std::string text(file.size(), '\0');
  file.read_at(0, text.data(), text.size());
  return parse_manifest(text, path.native());
}

}  // namespace fsdp::io
