// An adapter folder of peft and its base: adapter_config.json, adapter_model.safetensors, model.safetensors. Accepted
// means: the configuration reads back the same, and the merged model has every tensor of the base in its shape, whole.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/weights/adapter.h"
#include "io/weights/merged_source.h"
#include "io/weights/open_weights.h"
#include "tests/fuzz/bundle.h"
#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/promises.h"
#include "tests/fuzz/scratch.h"

namespace fsdp::fuzz {
namespace {

void check_config(const io::AdapterConfig& config) {
  const nlohmann::json written = io::to_peft(config);
  FUZZ_REQUIRE(io::to_peft(io::parse_adapter_config(written, "to_peft")) == written);
}

void check_merged(const io::WeightSource& merged, const io::WeightSource& base) {
  size_t kept = 0;
  for (const io::WeightTensor& tensor : base.tensors()) kept += io::is_adapter_name(tensor.name) ? 0 : 1;
  FUZZ_REQUIRE(merged.tensors().size() == kept);
  std::vector<size_t> wanted;
  std::vector<int64_t> read(merged.tensors().size(), 0);
  for (size_t i = 0; i < merged.tensors().size(); ++i) wanted.push_back(i);
  merged.read(wanted, [&](size_t tensor, int64_t first, int64_t count, const void* elements) {
    FUZZ_REQUIRE(first == read[tensor] && elements != nullptr);
    read[tensor] += count;
  });
  for (size_t i = 0; i < read.size(); ++i) FUZZ_REQUIRE(read[i] == merged.tensors()[i].numel());
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdp;
  const fuzz::CostGate gate(size);
  static const fuzz::ScratchFolder adapter_folder, base_folder;
  const auto parts = fuzz::split_bundle({reinterpret_cast<const char*>(data), size}, 3);
  adapter_folder.write(io::kAdapterConfigFile, parts[0]);
  adapter_folder.write(io::kAdapterWeightsFile, parts[1]);
  base_folder.write("model.safetensors", parts[2]);
  std::optional<io::Adapter> adapter;
  if (!fuzz::accepts([&] { adapter = io::read_adapter(*io::open_weight_source(adapter_folder.path())); })) return 0;
  fuzz::check_config(adapter->config);
  std::unique_ptr<io::WeightSource> merged, base;
  if (!fuzz::accepts([&] { base = io::open_weight_source(base_folder.path()); })) return 0;
  const bool fits = fuzz::accepts([&] {
    merged = io::open_merged_source(io::open_weight_source(base_folder.path()), std::move(*adapter), io::DType::BF16);
  });
  if (fits) fuzz::check_merged(*merged, *base);
  return 0;
}
