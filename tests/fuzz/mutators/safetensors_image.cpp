#include "tests/fuzz/mutators/safetensors_image.h"

#include <array>
#include <iterator>
#include <nlohmann/json.hpp>

namespace fsdp::fuzz {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxDataBytes = 4096;

struct DTypeName {
  const char* name;
  uint64_t item_size;
};
constexpr std::array<DTypeName, 8> kDTypeNames = {
    {{"F32", 4}, {"BF16", 2}, {"U8", 1}, {"I64", 8}, {"BOOL", 1}, {"F8_E4M3", 1}, {"F4", 1}, {"f32", 4}}};

struct Image {
  std::string header;
  std::string data;
};

Image cut(const std::string& file) {
  uint64_t length = 0;
  if (file.size() < sizeof(length)) return {"{}", ""};
  std::memcpy(&length, file.data(), sizeof(length));
  length = std::min<uint64_t>(length, file.size() - sizeof(length));
  return {file.substr(sizeof(length), length), file.substr(sizeof(length) + length)};
}

std::string join(const Image& image) {
  const uint64_t length = image.header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + image.header + image.data;
}

int64_t any_size(Random& random) {
  constexpr std::array<int64_t, 8> kEdges = {0, 1, -1, 4096, INT32_MAX, int64_t{1} << 32, int64_t{1} << 62, INT64_MAX};
  return pick(random, 4) == 0 ? kEdges[pick(random, kEdges.size())] : static_cast<int64_t>(pick(random, 5));
}

Json any_entry(Random& random) {
  Json shape = Json::array();
  for (size_t rank = pick(random, pick(random, 8) == 0 ? 11 : 4); rank > 0; --rank) shape.push_back(any_size(random));
  const Json offsets = {any_size(random), any_size(random)};
  return {{"dtype", kDTypeNames[pick(random, kDTypeNames.size())].name}, {"shape", shape}, {"data_offsets", offsets}};
}

bool is_entry(const Json& value) {
  return value.is_object() && value.contains("dtype") && value.contains("shape") && value["shape"].is_array() &&
         value.contains("data_offsets");
}

void edit_entry(Json& entry, Random& random) {
  Json& shape = entry["shape"];
  switch (pick(random, 5)) {
    case 0:
      entry["dtype"] = kDTypeNames[pick(random, kDTypeNames.size())].name;
      break;
    case 1:
      shape.push_back(any_size(random));
      break;
    case 2:
      if (!shape.empty()) shape[pick(random, shape.size())] = any_size(random);
      break;
    case 3:
      if (!shape.empty()) shape.erase(pick(random, shape.size()));
      break;
    default:
      entry["data_offsets"] = {any_size(random), any_size(random)};
  }
}

// One change of the kind that a broken or a hostile writer makes.
void edit_header(Json& header, Random& random) {
  const std::string name(1, static_cast<char>('a' + pick(random, 6)));
  switch (pick(random, 6)) {
    case 0:
      header[name] = any_entry(random);
      break;
    case 1:
      if (!header.empty()) header.erase(std::next(header.begin(), static_cast<long>(pick(random, header.size()))));
      break;
    case 2:
      header["__metadata__"][name] = mutate_text("value", 16);
      break;
    default:
      if (header.empty()) return;
      if (Json& entry = *std::next(header.begin(), static_cast<long>(pick(random, header.size()))); is_entry(entry)) {
        edit_entry(entry, random);
      }
  }
}

uint64_t item_size_of(const Json& dtype) {
  for (const DTypeName& known : kDTypeNames) {
    if (dtype == known.name) return known.item_size;
  }
  return 2;
}

// Gives every tensor the offsets that its shape asks for, and the file as much data.
void lay_out(Json& header, std::string& data) {
  uint64_t position = 0;
  for (Json& entry : header) {
    if (!is_entry(entry)) continue;
    uint64_t bytes = item_size_of(entry["dtype"]);
    for (const Json& size : entry["shape"]) bytes *= size.is_number_integer() ? size.get<uint64_t>() : 1;
    entry["data_offsets"] = {position, position + bytes};
    position += bytes;
  }
  if (position <= kMaxDataBytes) data.resize(position, 'd');
}

// The first member a second time.
std::string repeat_a_key(const Json& header, const std::string& text) {
  const Json key = header.begin().key();
  return "{" + key.dump(-1, ' ', false, Json::error_handler_t::replace) + ":{}," + text.substr(1);
}

Image edit(Image image, Random& random) {
  Json header = Json::parse(image.header, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) header = {{"a", any_entry(random)}};
  if (header.contains("__metadata__") && !header["__metadata__"].is_object()) header.erase("__metadata__");
  for (size_t i = 1 + pick(random, 3); i > 0; --i) edit_header(header, random);
  if (pick(random, 4) != 0) lay_out(header, image.data);
  image.header = header.dump(-1, ' ', /*ensure_ascii=*/pick(random, 2) == 0, Json::error_handler_t::replace);
  if (!header.empty() && pick(random, 16) == 0) image.header = repeat_a_key(header, image.header);
  if (pick(random, 4) == 0) image.header.append(pick(random, 9), ' ');
  return image;
}

}  // namespace

std::string mutate_safetensors(const std::string& file, size_t max_size, Random& random) {
  const size_t choice = pick(random, 16);
  if (choice == 0) return mutate_text(file, max_size);  // the length too
  Image image = cut(file);
  if (choice < 6) {
    image.header = mutate_text(image.header, max_size);
  } else if (choice < 8) {
    image.data = mutate_text(image.data, std::min(kMaxDataBytes, max_size));
  } else {
    image = edit(std::move(image), random);
  }
  return join(image);
}

}  // namespace fsdp::fuzz
