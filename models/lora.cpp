#include "models/lora.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "io/base/error.h"
#include "io/weights/adapter.h"

namespace fsdp::models {
namespace {

constexpr std::string_view kBlocks = "model.layers.";

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<std::string> resolve_targets(const Decoder& decoder, const LoraConfig& config) {
  const std::vector<std::string> known = linear_names(decoder);
  if (config.targets == std::vector<std::string>{"all-linear"}) return known;
  for (const std::string& target : config.targets) {
    if (contains(known, target)) continue;
    throw io::Error(io::ErrorKind::kUsage, "[lora] targets: got " + io::in_quotes(target) +
                                               ", expected all-linear, or some of " + join(known) + ".");
  }
  if (config.targets.empty()) {
    throw io::Error(io::ErrorKind::kUsage,
                    "[lora] targets: got none, expected all-linear, or some of " + join(known) + ".");
  }
  return config.targets;
}

}  // namespace

double LoraConfig::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (divides_by_root ? std::sqrt(r) : r);
}

std::vector<NamedLinear> linears_in_blocks(const Decoder& decoder) {
  std::vector<NamedLinear> linears;
  for (const auto& item : decoder->named_modules()) {
    auto* linear = item.value()->as<LinearImpl>();
    const bool is_in_block = item.key().rfind(kBlocks, 0) == 0 && !io::is_adapter_name(item.key() + ".weight");
    if (linear != nullptr && is_in_block) linears.push_back({item.key(), linear});
  }
  return linears;
}

std::vector<std::string> linear_names(const Decoder& decoder) {
  std::vector<std::string> names;
  for (const NamedLinear& linear : linears_in_blocks(decoder)) {
    const std::string name = last_part(linear.name);
    if (!contains(names, name)) names.push_back(name);
  }
  return names;
}

void add_lora(Decoder& decoder, const LoraConfig& config, uint64_t seed) {
  const std::vector<std::string> targets = resolve_targets(decoder, config);
  for (at::Tensor& parameter : decoder->parameters()) parameter.requires_grad_(false);
  const at::NoGradGuard no_grad;
  for (const NamedLinear& linear : linears_in_blocks(decoder)) {
    if (!contains(targets, last_part(linear.name))) continue;
    linear.module->add_adapter({config.rank, config.scale(), config.dropout, config.kind},
                               at::TensorOptions().dtype(at::kFloat));
    const auto parameters = linear.module->named_parameters();
    const double bound = 1 / std::sqrt(static_cast<double>(linear.module->in_features()));
    fill_uniform(parameters["lora_A.weight"], bound, seed, linear.name + ".lora_A.weight");
    at::Tensor(parameters["lora_B.weight"]).zero_();
    if (linear.module->has_magnitude()) at::Tensor(parameters["lora_magnitude_offset"]).zero_();
  }
}

}  // namespace fsdp::models
