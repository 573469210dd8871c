#include "models/config/stored_parts.h"

#include <array>
#include <string>
#include <string_view>

#include "models/config/family.h"

namespace fsdp::models {
namespace {

constexpr std::string_view kGate = ".mlp.gate.weight";
constexpr std::string_view kGateUp = ".mlp.experts.gate_up_proj";
constexpr std::string_view kDown = ".mlp.experts.down_proj";

// How a family calls what is in a layer of experts.
struct ExpertNames {
  std::string layer, gate, up, down;
};

ExpertNames names_of(ExpertKeys keys) {
  if (keys == ExpertKeys::kMixtral) return {".block_sparse_moe", "w1", "w3", "w2"};
  return {".mlp", "gate_proj", "up_proj", "down_proj"};
}

}  // namespace

std::vector<NamedShape> stored_parts(const DecoderConfig& config, const NamedShape& parameter) {
  const std::string& name = parameter.name;
  const Family* family = find_family(config.model_type);
  if (config.experts.count == 0 || family == nullptr) return {parameter};
  const ExpertNames names = names_of(family->experts);
  const auto block = [&](std::string_view end) { return name.substr(0, name.size() - end.size()) + names.layer; };
  if (name.ends_with(kGate)) return {{block(kGate) + ".gate.weight", parameter.shape}};
  const bool is_gate_up = name.ends_with(kGateUp);
  if (!is_gate_up && !name.ends_with(kDown)) return {parameter};
  std::vector<NamedShape> parts;
  const int64_t out = parameter.shape[1], in = parameter.shape[2];
  for (int64_t expert = 0; expert < parameter.shape[0]; ++expert) {
    const std::string begin = block(is_gate_up ? kGateUp : kDown) + ".experts." + std::to_string(expert) + ".";
    if (is_gate_up) {
      parts.push_back({begin + names.gate + ".weight", {out / 2, in}});
      parts.push_back({begin + names.up + ".weight", {out / 2, in}});
    } else {
      parts.push_back({begin + names.down + ".weight", {out, in}});
    }
  }
  return parts;
}

}  // namespace fsdp::models
