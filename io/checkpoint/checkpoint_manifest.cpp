#include "io/checkpoint/checkpoint_manifest.h"

#define XXH_INLINE_ALL  // the header is all we need: no library to link
#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "io/base/error.h"
#include "io/base/hash.h"
#include "io/base/json.h"
#include "io/checkpoint/checkpoint_rules.h"

namespace fsdp::io {

namespace {

// JSON has no word for NaN and infinity (they would come back as null), and a reader has a limit of depth.
void check_values(const nlohmann::json& value, int depth) {
  if (depth >= kMaxManifestDepth) {
    throw Error(ErrorKind::kUsage,
                "[manifest] values: got " + std::to_string(depth) + " nested levels, expected fewer. Store them flat.");
  }
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    throw Error(
        ErrorKind::kUsage,
        "[manifest] values: got a number that is not finite, expected numbers that JSON can hold. Store its bits "
        "as text.");
  }
  for (const nlohmann::json& member : value) {
    if (value.is_structured()) check_values(member, depth + 1);
  }
}

std::string values_text(const nlohmann::json& values) {
  check_values(values, 1);
  try {
    return values.dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::kUsage,
                "[manifest] values: got text that is not UTF-8, expected UTF-8. Store it as numbers.");
  }
}

// Appends `items`, each by `append_item`, as the lines of a JSON array.
template <class Items, class AppendItem>
void append_lines(std::string& text, const Items& items, const AppendItem& append_item) {
  const char* separator = "\n";
  text += "[";
  for (const auto& item : items) {
    text += separator;
    append_item(text, item);
    separator = ",\n";
  }
  text += "]";
}

template <class Items, class Text>
void append_list(std::string& text, const Items& items, const Text& item_text) {
  const char* separator = "[";
  for (const auto& item : items) {
    text += separator + item_text(item);
    separator = ",";
  }
  text += items.empty() ? "[]" : "]";
}

void append_file(std::string& text, const CheckpointFile& file) {
  text += R"({"name":)" + json_string(file.name) + R"(,"bytes":)" + std::to_string(file.bytes) + R"(,"chunks":)";
  append_list(text, file.chunks, [](const Hash128& hash) { return '"' + hash_text(hash) + '"'; });
  text += "}";
}

void append_tensor(std::string& text, const CheckpointTensor& tensor) {
  text += R"({"name":)" + json_string(tensor.name) + R"(,"dtype":")";
  text.append(name(tensor.dtype)).append(R"(","shape":)");
  append_list(text, tensor.shape, [](int64_t size) { return std::to_string(size); });
  text += R"(,"parts":)";
  append_list(text, tensor.parts, [](const CheckpointPart& part) {
    return "[" + std::to_string(part.file) + "," + std::to_string(part.offset) + "," + std::to_string(part.begin) +
           "," + std::to_string(part.end) + "]";
  });
  text += "}";
}

}  // namespace

Hash128 hash128(const void* data, size_t num_bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, num_bytes);
  return {hash.high64, hash.low64};
}

std::string hash_text(const Hash128& hash) { return hash_text(hash.high) + hash_text(hash.low); }

int64_t CheckpointTensor::numel() const {
  int64_t numel = 1;
  for (int64_t size : shape) numel *= size;
  return numel;
}

const CheckpointTensor* CheckpointManifest::find(std::string_view name) const {
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const CheckpointTensor& tensor, std::string_view n) { return tensor.name < n; });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

std::string manifest_text(const CheckpointManifest& manifest) {
  check_manifest(manifest, kManifestName, ErrorKind::kUsage);
  std::string text = R"({"format":"fsdp-checkpoint","version":)" + std::to_string(kCheckpointVersion);
  text += R"(,"step":)" + std::to_string(manifest.step) + R"(,"world_size":)" + std::to_string(manifest.world_size);
  text += R"(,"created":)" + json_string(manifest.created) + R"(,"writer":)" + json_string(manifest.writer);
  text += R"(,"chunk_bytes":)" + std::to_string(kChunkBytes) + ",\n";
  text += R"("values":)" + values_text(manifest.values) + ",\n";
  text += R"("files":)";
  append_lines(text, manifest.files, append_file);
  text += ",\n\"tensors\":";
  append_lines(text, manifest.tensors, append_tensor);
  text += ",\n\"digest\":\"";
  text += hash_text(hash128(text.data(), text.size())) + "\"}\n";
  if (text.size() > kMaxManifestBytes) {
    throw Error(ErrorKind::kUsage, "[manifest] got " + std::to_string(text.size()) + " bytes, expected at most " +
                                       std::to_string(kMaxManifestBytes) + ". Store large values as tensors.");
  }
  return text;
}

}  // namespace fsdp::io
