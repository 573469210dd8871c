#include <nlohmann/json.hpp>

#include "io/tokens/token_shard_header.h"
#include "tests/fuzz/mutators/engine.h"

namespace fsdp::fuzz {
namespace {

using Json = nlohmann::ordered_json;

// The counts in both headers become what the sizes of the files say; returns false for files that are too short.
bool fit_headers(std::string& bin, std::string& idx, Random& random, uint64_t& num_tokens, uint64_t& num_documents) {
  io::TokenShardHeader header = {};
  if (bin.size() < sizeof(header) || idx.size() < sizeof(header)) return false;
  std::memcpy(&header, bin.data(), sizeof(header));
  if (header.item_bytes != 1 && header.item_bytes != 2 && header.item_bytes != 4) header.item_bytes = 2;
  num_tokens = (bin.size() - sizeof(header)) / header.item_bytes;
  num_documents = std::min<uint64_t>((idx.size() - sizeof(header)) / sizeof(uint64_t), num_tokens);
  bin.resize(sizeof(header) + num_tokens * header.item_bytes);
  idx.resize(sizeof(header) + num_documents * sizeof(uint64_t));
  header.num_tokens = num_tokens;
  header.num_documents = num_documents;
  std::memcpy(bin.data(), &header, sizeof(header));
  header.magic = io::kIndexMagic;
  header.item_bytes = io::kIndexItemBytes;
  std::memcpy(idx.data(), &header, sizeof(header));
  if (pick(random, 2) == 0) {
    for (uint64_t i = 0; i < num_documents; ++i) {
      const uint64_t start = i * num_tokens / num_documents;
      std::memcpy(idx.data() + sizeof(header) + i * sizeof(start), &start, sizeof(start));
    }
  }
  return true;
}

// Makes the shard `name` and what the manifest says of it agree.
void agree(std::vector<std::string>& parts, size_t shard, Random& random) {
  uint64_t num_tokens = 0;
  uint64_t num_documents = 0;
  if (!fit_headers(parts[1 + 2 * shard], parts[2 + 2 * shard], random, num_tokens, num_documents)) return;
  Json manifest = Json::parse(parts[0], nullptr, /*allow_exceptions=*/false);
  if (!manifest.is_object() || !manifest.contains("splits") || !manifest["splits"].is_object()) return;
  for (Json& shards : manifest["splits"]) {
    for (Json& entry : shards) {
      if (!entry.is_object() || !entry.contains("name") || entry["name"] != "s" + std::to_string(shard)) continue;
      entry["num_tokens"] = num_tokens;
      entry["num_documents"] = num_documents;
    }
  }
  parts[0] = manifest.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  using namespace fsdp::fuzz;
  Random random(seed);
  return mutate_bundle(data, size, max_size, 6, random, [&](auto& parts, size_t changed, size_t room) {
    parts[changed] = mutate_text(parts[changed], room);
    if (pick(random, 4) != 0 && changed < 5) agree(parts, changed < 3 ? 0 : 1, random);
  });
}
