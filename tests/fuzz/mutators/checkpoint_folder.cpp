#include "io/checkpoint/checkpoint_manifest.h"
#include "tests/fuzz/mutators/manifest_text.h"

namespace fsdp::fuzz {
namespace {

using Json = nlohmann::ordered_json;

// The manifest gets the size and the hash that the file has now. Files of a bundle are shorter than a chunk.
void describe_file(std::vector<std::string>& parts, size_t file) {
  Json manifest = Json::parse(parts[0], nullptr, /*allow_exceptions=*/false);
  if (!manifest.is_object() || !manifest.contains("files") || !manifest["files"].is_array()) return;
  if (manifest["files"].size() <= file || !manifest["files"][file].is_object()) return;
  const std::string& bytes = parts[file + 1];
  Json chunks = Json::array();
  if (!bytes.empty()) chunks.push_back(io::hash_text(io::hash128(bytes.data(), bytes.size())));
  manifest["files"][file]["bytes"] = bytes.size();
  manifest["files"][file]["chunks"] = chunks;
  parts[0] = with_digest(manifest);
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  using namespace fsdp::fuzz;
  Random random(seed);
  return mutate_bundle(data, size, max_size, 3, random, [&](auto& parts, size_t changed, size_t room) {
    if (changed == 0) {
      parts[0] = mutate_manifest(parts[0], room, random);
      return;
    }
    const size_t size_before = parts[changed].size();
    parts[changed] = mutate_text(parts[changed], room);
    if (pick(random, 2) == 0) parts[changed].resize(size_before, 'd');
    if (pick(random, 2) == 0) describe_file(parts, changed - 1);
  });
}
