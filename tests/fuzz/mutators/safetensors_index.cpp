#include <nlohmann/json.hpp>

#include "tests/fuzz/mutators/safetensors_image.h"

namespace fsdp::fuzz {
namespace {

using Json = nlohmann::ordered_json;

// Names of the tensors in a shard, as far as its header can be read.
void list_tensors(const std::string& shard, const char* shard_name, Json& weight_map) {
  const size_t start = shard.find('{');
  if (start == std::string::npos || shard.size() < 8) return;
  uint64_t length = 0;
  std::memcpy(&length, shard.data(), sizeof(length));
  const Json header = Json::parse(shard.substr(start, length), nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") weight_map[name] = shard_name;
  }
}

// An index that names what the shards hold.
std::string index_of(const std::vector<std::string>& parts) {
  Json weight_map = Json::object();
  list_tensors(parts[1], "a.safetensors", weight_map);
  list_tensors(parts[2], "b.safetensors", weight_map);
  return Json({{"metadata", {{"total_size", parts[1].size()}}}, {"weight_map", weight_map}})
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  using namespace fsdp::fuzz;
  Random random(seed);
  return mutate_bundle(data, size, max_size, 3, random, [&](auto& parts, size_t changed, size_t room) {
    if (changed == 0) {
      parts[0] = mutate_text(parts[0], room);
    } else {
      parts[changed] = mutate_safetensors(parts[changed], room, random);
    }
    if (changed != 0 && !parts[0].empty() && pick(random, 2) == 0) parts[0] = index_of(parts);
  });
}
