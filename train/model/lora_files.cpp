#include "train/model/lora_files.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "io/base/atomic_file.h"
#include "io/base/error.h"
#include "io/base/staged_folder.h"
#include "io/safetensors/safetensors.h"
#include "io/weights/adapter.h"
#include "io/weights/open_weights.h"
#include "train/base/agreement.h"
#include "train/model/adapters/adapter_writer.h"
#include "train/model/adapters/row_norms.h"
#include "train/model/weights.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

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

// What an adapter has for a leaf.
struct Found {
  const std::vector<float>* values = nullptr;  // whole
  const io::LowRank* factors = nullptr;
};

Found find_values(const io::Adapter& adapter, const std::string& name, const at::Tensor& leaf) {
  const std::string map =
      is_offset(name) ? map_of_offset(name) : name.substr(0, name.size() - std::string_view(".lora_A.weight").size());
  const auto found = adapter.modules.find(map);
  if (found == adapter.modules.end()) return {};
  const io::LowRank& factors = found->second;
  const bool is_a = name.ends_with(".lora_A.weight");
  const std::vector<int64_t> shape = is_offset(name) ? std::vector<int64_t>{factors.out}
                                     : is_a          ? std::vector<int64_t>{factors.rank, factors.in}
                                                     : std::vector<int64_t>{factors.out, factors.rank};
  if (whole_sizes(leaf) != shape) return {};
  return {is_offset(name) ? &factors.norms : is_a ? &factors.a : &factors.b, &factors};
}

io::AdapterConfig adapter_config(const models::LoraConfig& lora, const std::string& base) {
  io::AdapterConfig config{lora.rank, lora.alpha, lora.dropout, lora.targets, base, lora.divides_by_root};
  config.has_magnitudes = lora.kind == models::AdapterKind::kDora;
  return config;
}

// Of the file: what was added since the start takes twice the rank, at the same scale.
io::AdapterConfig file_config(const models::LoraConfig& lora, const std::string& base, const AdapterStart* start) {
  io::AdapterConfig config = adapter_config(lora, base);
  if (start == nullptr) return config;
  config.rank *= 2;
  config.alpha *= config.divides_by_root ? std::sqrt(2.0) : 2;
  return config;
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

std::string adapter_config_text(const Tuning& tuning, const std::string& base) {
  io::AdapterConfig config = adapter_config(*tuning.lora, base);
  config.holds_part_of_base = tuning.init == LoraInit::kPrincipal;
  return io::to_peft(config).dump(2) + "\n";
}

void save_adapter(const ShardedModel& model, const World& world, const fs::path& folder, const models::LoraConfig& lora,
                  const std::string& base) {
  const std::vector<WholeTensor> adapters = whole_adapters(model);
  std::map<std::string, at::Tensor> norms;
  if (lora.kind == models::AdapterKind::kDora) norms = row_norms(model);
  std::optional<io::StagedFolder> staging;  // of rank 0
  std::unique_ptr<AdapterWriter> writer;
  on_rank0(world, [&] {
    staging.emplace(folder);
    writer =
        std::make_unique<AdapterWriter>(staging->path() / io::kAdapterWeightsFile, adapters, norms, model.start.get());
  });
  collect_main_weights(
      world, adapters, adapter_leaves(model),
      [&](const std::string& name, int64_t first, const at::Tensor& values) { writer->write(name, first, values); });
  on_rank0(world, [&] {
    writer->commit();
    io::write_file_atomically(staging->path() / io::kAdapterConfigFile,
                              io::to_peft(file_config(lora, base, model.start.get())).dump(2) + "\n");
    staging->publish();
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
    io::work_in(*factors, adapter.config.scale(), 0, factors->out, sum.mutable_data_ptr<float>());
    if (!sum.is_alias_of(weight)) weight.copy_(sum);
  }
}

void merge_adapter(const ShardedModel& model, const World& world, const fs::path& folder) {
  io::Adapter adapter;
  on_all_ranks(world, [&] {
    adapter = io::read_adapter(*io::open_weight_source(folder));
    std::map<std::string, at::Tensor> leaves;
    for (const auto& [name, leaf] : named_parameters(*model.decoder)) leaves[name] = leaf;
    for (const auto& [module, factors] : adapter.modules) {
      const auto found = leaves.find(module + ".weight");
      const bool fits =
          found != leaves.end() && logical_sizes(found->second) == std::vector<int64_t>{factors.out, factors.in};
      if (!fits) refuse_map(module, factors, folder);
    }
  });
  work_into_slices(model, world, adapter);
}

void load_adapter(const ShardedModel& model, const World& world, const models::LoraConfig& lora,
                  const fs::path& folder) {
  const at::NoGradGuard no_grad;
  const NamedLeaves leaves = adapter_leaves(model);
  io::Adapter adapter;
  std::vector<Found> found;
  on_all_ranks(world, [&] {
    adapter = io::read_adapter(*io::open_weight_source(folder));
    const bool has_magnitudes = lora.kind == models::AdapterKind::kDora;
    bool fits = whole_adapters(model).size() == (has_magnitudes ? 3 : 2) * adapter.modules.size() &&
                adapter.config.scale() == lora.scale() && adapter.config.has_magnitudes == has_magnitudes;
    for (const auto& [name, leaf] : leaves) {
      found.push_back(find_values(adapter, name, leaf));
      fits = fits && found.back().values != nullptr;
    }
    if (fits) return;
    throw io::Error(io::ErrorKind::kModel, "[tune] tune.lora_from: " + io::in_quotes(folder.native()) +
                                               ": got an adapter with another rank, alpha, kind or other modules than "
                                               "tune.lora_rank, lora_alpha, lora_kind and lora_targets ask for; it "
                                               "says " +
                                               io::in_quotes(io::to_peft(adapter.config).dump()) + ".");
  });
  std::map<std::string, at::Tensor> norms;
  if (adapter.config.has_magnitudes) norms = row_norms(model);
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto& [name, leaf] = leaves[i];
    at::Tensor whole = at::tensor(at::ArrayRef<float>(*found[i].values));
    if (is_offset(name) && found[i].factors->magnitude == io::Magnitude::kNorms)
      whole.sub_(norms.at(map_of_offset(name)));
    at::Tensor mine = at::empty({leaf.numel()}, at::kFloat);
    for (const WholeRun& run : whole_runs(leaf))
      mine.narrow(0, run.begin, run.count).copy_(whole.narrow(0, run.first, run.count));
    leaf.detach().view(-1).copy_(mine);  // ranks write equally often, those without a slice too
  }
}

}  // namespace fsdp::train
