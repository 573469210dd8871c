#include "tests/fuzz/mutators/manifest_text.h"

#include <array>

#include "io/checkpoint/checkpoint_manifest.h"

namespace fsdp::fuzz {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kDigestBegin = R"("digest":")";

int64_t any_number(Random& random) {
  constexpr std::array<int64_t, 9> kEdges = {
      0, 1, -1, 64, 4096, INT64_MAX, int64_t{1} << 32, int64_t{1} << 62, static_cast<int64_t>(io::kChunkBytes) + 1};
  return pick(random, 3) == 0 ? kEdges[pick(random, kEdges.size())] : static_cast<int64_t>(pick(random, 9));
}

// A member that is a list with something in it, or null.
Json* list_of(Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_array() || object[key].empty()) return nullptr;
  return &object[key];
}

Json* any_item(Json* list, Random& random) { return list == nullptr ? nullptr : &(*list)[pick(random, list->size())]; }

// One part that holds the whole tensor, where the first part started.
void cover(Json& tensor) {
  Json* parts = list_of(tensor, "parts");
  if (parts == nullptr || !(*parts)[0].is_array() || (*parts)[0].size() != 4) return;
  if (!tensor.contains("shape") || !tensor["shape"].is_array()) return;
  uint64_t numel = 1;
  for (const Json& size : tensor["shape"]) numel *= size.is_number_integer() ? size.get<uint64_t>() : 1;
  const Json first = (*parts)[0];
  *parts = {{first[0], first[1], 0, numel}};
}

void edit_tensor(Json& tensor, Random& random) {
  if (!tensor.is_object()) return;
  switch (pick(random, 5)) {
    case 0:
      tensor["dtype"] = std::array{"F32", "U8", "F64", "BF16", "F4"}[pick(random, 5)];
      break;
    case 1:
      tensor["name"] = std::string(pick(random, 3), static_cast<char>('a' + pick(random, 20)));
      break;
    case 2:
      if (Json* size = any_item(list_of(tensor, "shape"), random)) *size = any_number(random);
      break;
    case 3:
      tensor["shape"].push_back(any_number(random));
      break;
    default:
      if (Json* part = any_item(list_of(tensor, "parts"), random); part != nullptr && part->is_array()) {
        if (!part->empty()) (*part)[pick(random, part->size())] = any_number(random);
      }
  }
  if (pick(random, 2) == 0) cover(tensor);
}

void edit_file(Json& file, Random& random) {
  if (!file.is_object()) return;
  switch (pick(random, 3)) {
    case 0:
      file["bytes"] = any_number(random);
      break;
    case 1:
      file["name"] = std::array{"a", "rank-0", ".hidden", "../a", "manifest.json", ""}[pick(random, 6)];
      break;
    default:
      if (Json* chunks = list_of(file, "chunks")) chunks->push_back((*chunks)[0]);
  }
}

void edit(Json& manifest, Random& random) {
  switch (pick(random, 8)) {
    case 0:
      if (Json* file = any_item(list_of(manifest, "files"), random)) edit_file(*file, random);
      break;
    case 1:
      if (Json* tensors = list_of(manifest, "tensors")) tensors->push_back((*tensors)[pick(random, tensors->size())]);
      break;
    case 2:
      if (Json* tensors = list_of(manifest, "tensors")) tensors->erase(pick(random, tensors->size()));
      break;
    case 3:
      manifest[std::array{"step", "world_size", "version", "chunk_bytes"}[pick(random, 4)]] = any_number(random);
      break;
    case 4:
      manifest["values"] = {{mutate_text("section", 16), any_number(random)}};
      break;
    default:
      if (Json* tensor = any_item(list_of(manifest, "tensors"), random)) edit_tensor(*tensor, random);
  }
}

}  // namespace

std::string with_digest(std::string text) {
  const size_t digest = text.rfind(kDigestBegin);
  if (digest != std::string::npos) {
    text.resize(digest + kDigestBegin.size());
  } else {
    text.resize(std::min(text.size(), text.rfind('}')));
    text.append(",\n").append(kDigestBegin);
  }
  return text + io::hash_text(io::hash128(text.data(), text.size())) + "\"}\n";
}

std::string with_digest(const Json& manifest) {
  Json rest = manifest;
  rest.erase("digest");
  rest["digest"] = "";
  return with_digest(rest.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string mutate_manifest(const std::string& text, size_t max_size, Random& random) {
  const size_t choice = pick(random, 16);
  if (choice == 0) return mutate_text(text, max_size);
  if (choice < 7) return with_digest(mutate_text(text, std::max<size_t>(max_size, 64) - 48));
  Json manifest = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!manifest.is_object()) return with_digest(mutate_text(text, max_size));
  for (size_t i = 1 + pick(random, 3); i > 0; --i) edit(manifest, random);
  return with_digest(manifest);
}

}  // namespace fsdp::fuzz
