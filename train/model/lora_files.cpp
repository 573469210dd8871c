#include "train/model/lora_files.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>

#include "io/base/atomic_file.h"
#include "io/base/error.h"
#include "io/safetensors/safetensors.h"
#include "io/weights/adapter.h"
#include "io/weights/open_weights.h"
#include "train/base/agreement.h"
#include "train/model/weights.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

std::string stored_name(const std::string& parameter) { return std::string(io::kAdapterPrefix) + parameter; }

std::unique_ptr<io::SafetensorsWriter> make_writer(const fs::path& folder, const std::vector<WholeTensor>& adapters) {
  std::vector<io::TensorDeclaration> tensors;
  for (const WholeTensor& each : adapters) tensors.push_back({stored_name(each.name), io::DType::F32, each.sizes});
  return std::make_unique<io::SafetensorsWriter>(folder / io::kAdapterWeightsFile, std::move(tensors),
                                                 std::map<std::string, std::string>{{"format", "pt"}});
}

[[noreturn]] void refuse_map(const std::string& module, const io::LowRank& factors, const fs::path& folder) {
  throw io::Error(io::ErrorKind::kModel, "[adapter] " + io::in_quotes(folder.native()) + ": " + io::in_quotes(module) +
                                             ": got a map from " + std::to_string(factors.in) + " to " +
                                             std::to_string(factors.out) +
                                             ", which the model does not have. Pass the "
                                             "model that the adapter was trained on.");
}

// The weight that the factors of `module` belong to.
at::Tensor weight_of(models::Decoder& decoder, const std::string& module, const io::LowRank& factors,
                     const fs::path& folder) {
  const auto parameters = decoder->named_parameters();
  const at::Tensor* weight = parameters.find(module + ".weight");
  if (weight != nullptr && weight->sizes() == at::IntArrayRef{factors.out, factors.in}) return *weight;
  refuse_map(module, factors, folder);
}

// Where the values of an adapter's leaf are in memory.
const std::vector<float>* find_values(const io::Adapter& adapter, const std::string& name, const at::Tensor& leaf) {
  const bool is_a = name.ends_with(".lora_A.weight");
  const auto found = adapter.modules.find(name.substr(0, name.size() - std::string_view(".lora_A.weight").size()));
  if (found == adapter.modules.end()) return nullptr;
  const io::LowRank& factors = found->second;
  const std::vector<int64_t> shape{is_a ? factors.rank : factors.out, is_a ? factors.in : factors.rank};
  return whole_sizes(leaf) != shape ? nullptr : is_a ? &factors.a : &factors.b;
}

// Of all stages.
std::vector<WholeTensor> whole_adapters(const ShardedModel& model) {
  std::vector<WholeTensor> adapters = whole_tensors(model);
  std::erase_if(adapters, [](const WholeTensor& tensor) { return !io::is_adapter_name(tensor.name); });
  return adapters;
}

NamedLeaves adapter_leaves(const ShardedModel& model) {
  NamedLeaves leaves = named_parameters(*model.decoder);
  std::erase_if(leaves, [](const auto& leaf) { return !io::is_adapter_name(leaf.first); });
  return leaves;
}

}  // namespace

std::string adapter_config_text(const models::LoraConfig& lora, const std::string& base) {
  io::AdapterConfig config{lora.rank, lora.alpha, lora.dropout, lora.targets, base, lora.divides_by_root};
  return io::to_peft(config).dump(2) + "\n";
}

void save_adapter(const ShardedModel& model, const World& world, const fs::path& folder, const models::LoraConfig& lora,
                  const std::string& base) {
  const std::vector<WholeTensor> adapters = whole_adapters(model);
  const fs::path staging =
      folder.parent_path() / ("." + folder.filename().string() + ".tmp-" + std::to_string(getpid()));
  std::unique_ptr<io::SafetensorsWriter> writer;
  on_rank0(world, [&] {
    fs::remove_all(staging);
    fs::create_directories(staging);
    writer = make_writer(staging, adapters);
  });
  collect_main_weights(world, adapters, adapter_leaves(model),
                       [&](const std::string& name, int64_t first, const at::Tensor& values) {
                         writer->write(stored_name(name), first, values.numel(), values.const_data_ptr());
                       });
  on_rank0(world, [&] {
    writer->commit();
    io::write_file_atomically(staging / io::kAdapterConfigFile, adapter_config_text(lora, base));
    fs::remove_all(folder);
    fs::rename(staging, folder);
    io::sync_folder(folder.parent_path());
  });
}

void load_adapter(models::Decoder& decoder, const fs::path& folder) {
  const at::NoGradGuard no_grad;
  io::Adapter adapter = io::read_adapter(*io::open_weight_source(folder));
  std::vector<std::pair<at::Tensor, io::LowRank*>> places;
  for (auto& [module, factors] : adapter.modules) {
    places.emplace_back(weight_of(decoder, module, factors, folder), &factors);
  }
  for (auto& [weight, factors] : places) {
    at::Tensor sum = weight.detach().to(at::kFloat).contiguous();
    io::add_low_rank(*factors, adapter.config.scale(), 0, sum.numel(), sum.mutable_data_ptr<float>());
    if (!sum.is_alias_of(weight)) weight.copy_(sum);
  }
}

void merge_adapter(const ShardedModel& model, const fs::path& folder) {
  const at::NoGradGuard no_grad;
  const io::Adapter adapter = io::read_adapter(*io::open_weight_source(folder));
  std::map<std::string, at::Tensor> leaves;
  for (const auto& [name, leaf] : named_parameters(*model.decoder)) leaves[name] = leaf;
  for (const auto& [module, factors] : adapter.modules) {
    const auto found = leaves.find(module + ".weight");
    const bool fits =
        found != leaves.end() && logical_sizes(found->second) == std::vector<int64_t>{factors.out, factors.in};
    if (!fits) refuse_map(module, factors, folder);
  }
  // In the model's order, so that all ranks write it alike, those too whose slice is empty.
  for (const auto& [name, leaf] : named_parameters(*model.decoder)) {
    if (!name.ends_with(".weight")) continue;
    const auto found = adapter.modules.find(name.substr(0, name.size() - std::string_view(".weight").size()));
    if (found == adapter.modules.end()) continue;
    const LocalRange range = local_range(leaf);
    at::Tensor sum = leaf.detach().view(-1).to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    io::add_low_rank(found->second, adapter.config.scale(), range.begin, range.end - range.begin,
                     sum.mutable_data_ptr<float>());
    leaf.detach().view(-1).copy_(sum);
  }
}

void load_adapter(const ShardedModel& model, const models::LoraConfig& lora, const fs::path& folder) {
  const at::NoGradGuard no_grad;
  const io::Adapter adapter = io::read_adapter(*io::open_weight_source(folder));
  const NamedLeaves leaves = adapter_leaves(model);
  bool fits = whole_adapters(model).size() == 2 * adapter.modules.size() && adapter.config.scale() == lora.scale();
  std::vector<const std::vector<float>*> values;
  for (const auto& [name, leaf] : leaves) {
    values.push_back(find_values(adapter, name, leaf));
    fits = fits && values.back() != nullptr;
  }
  if (!fits) {
    throw io::Error(io::ErrorKind::kModel, "[tune] tune.lora_from: " + io::in_quotes(folder.native()) +
                                               ": got an adapter with another rank, alpha or other modules than "
                                               "tune.lora_rank, lora_alpha and lora_targets ask for; it says " +
                                               io::in_quotes(io::to_peft(adapter.config).dump()) + ".");
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor whole = at::tensor(at::ArrayRef<float>(*values[i]));
    at::Tensor mine = at::empty({leaves[i].second.numel()}, at::kFloat);
    for (const WholeRun& run : whole_runs(leaves[i].second))
      mine.narrow(0, run.begin, run.count).copy_(whole.narrow(0, run.first, run.count));
    leaves[i].second.detach().view(-1).copy_(mine);  // ranks write equally often, those without a slice too
  }
}

}  // namespace fsdp::train
