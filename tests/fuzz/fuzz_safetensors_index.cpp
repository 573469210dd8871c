// A model folder: an index and two shards, a.safetensors and b.safetensors; or, if the index is empty, the first shard
// as model.safetensors. Accepted means: every name is readable, from a file inside the folder.
#include <algorithm>
#include <memory>
#include <string>

#include "io/hub/model_folder.h"
#include "tests/fuzz/bundle.h"
#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/promises.h"
#include "tests/fuzz/scratch.h"

namespace fsdp::fuzz {
namespace {

void put(const ScratchFolder& folder, std::string_view name, std::string_view bytes, bool exists) {
  if (exists) {
    folder.write(name, bytes);
  } else {
    folder.remove(name);
  }
}

void check_model(const io::ModelFolder& model, const std::filesystem::path& folder) {
  uint64_t total = 0;
  for (const std::string& name : model.names()) {
    const auto location = model.find(name);
    FUZZ_REQUIRE(location.has_value() && location->entry->name == name);
    FUZZ_REQUIRE(location->file->path().parent_path() == folder);
    const uint64_t num_bytes = location->entry->end - location->entry->begin;
    std::string bytes(num_bytes, '\0');
    model.read(name, 0, location->entry->numel(), bytes.data());
    total += num_bytes;
  }
  FUZZ_REQUIRE(std::is_sorted(model.names().begin(), model.names().end()));
  FUZZ_REQUIRE(total == model.total_bytes());
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdp;
  const fuzz::CostGate gate(size);
  static const fuzz::ScratchFolder folder;
  const auto parts = fuzz::split_bundle({reinterpret_cast<const char*>(data), size}, 3);
  const bool has_index = !parts[0].empty();
  fuzz::put(folder, "model.safetensors.index.json", parts[0], has_index);
  fuzz::put(folder, "model.safetensors", parts[1], !has_index);
  fuzz::put(folder, "a.safetensors", parts[1], has_index);
  fuzz::put(folder, "b.safetensors", parts[2], has_index);
  std::unique_ptr<io::ModelFolder> model;
  if (fuzz::accepts([&] { model = std::make_unique<io::ModelFolder>(io::ModelFolder::open(folder.path())); })) {
    fuzz::check_model(*model, folder.path());
  }
  return 0;
}
