#include "models/load_weights.h"

#include <torch/torch.h>

#include <array>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "io/error.h"
#include "models/text_table.h"

namespace fsdp::models {
namespace {

using Mismatch = std::array<std::string, 3>;  // name, in file, in model

std::optional<at::ScalarType> scalar_type_of(io::DType dtype) {
  switch (dtype) {
    case io::DType::F16:
      return at::kHalf;
    case io::DType::BF16:
      return at::kBFloat16;
    case io::DType::F32:
      return at::kFloat;
    case io::DType::F64:
      return at::kDouble;
    default:
      return std::nullopt;
  }
}

std::string describe(at::IntArrayRef shape) {
  std::ostringstream out;
  out << shape;
  return out.str();
}

// In the file but not needed: a tied head written twice, and frequencies that old versions saved.
bool is_tolerated(const std::string& name) {
  constexpr std::string_view kFrequencies = "rotary_emb.inv_freq";
  return name == "lm_head.weight" || (name.size() >= kFrequencies.size() &&
                                      std::string_view(name).substr(name.size() - kFrequencies.size()) == kFrequencies);
}

std::vector<Mismatch> find_mismatches(const torch::OrderedDict<std::string, at::Tensor>& parameters,
                                      const io::ModelFolder& folder) {
  std::vector<Mismatch> mismatches;
  for (const auto& parameter : parameters) {
    const std::string expected = describe(parameter.value().sizes());
    const auto location = folder.find(parameter.key());
    if (!location) {
      mismatches.push_back({parameter.key(), "(absent)", expected});
      continue;
    }
    const io::TensorEntry& entry = *location->entry;
    if (parameter.value().sizes() != at::IntArrayRef(entry.shape))
      mismatches.push_back({parameter.key(), describe(entry.shape), expected});
    else if (!scalar_type_of(entry.dtype))
      mismatches.push_back({parameter.key(), std::string(io::name(entry.dtype)), "BF16, F16, F32 or F64"});
  }
  for (const std::string& name : folder.names())
    if (!parameters.contains(name) && !is_tolerated(name))
      mismatches.push_back({io::in_quotes(name), describe(folder.find(name)->entry->shape), "(absent)"});
  return mismatches;
}

[[noreturn]] void throw_mismatches(const std::vector<Mismatch>& mismatches, const io::ModelFolder& folder) {
  std::vector<Mismatch> rows = {{"tensor", "in file", "in model"}};
  rows.insert(rows.end(), mismatches.begin(), mismatches.end());
  throw io::Error(io::ErrorKind::kModel, "[load_weights] " + io::in_quotes(folder.path().string()) + ": " +
                                             std::to_string(mismatches.size()) + " tensor(s) do not fit the model" +
                                             text_table(rows));
}

}  // namespace

void load_weights(torch::nn::Module& module, const io::ModelFolder& folder) {
  at::NoGradGuard no_grad;
  const auto parameters = module.named_parameters();
  const auto mismatches = find_mismatches(parameters, folder);
  if (!mismatches.empty()) throw_mismatches(mismatches, folder);
  for (const auto& parameter : parameters) {
    const io::TensorEntry& entry = *folder.find(parameter.key())->entry;
    const at::Tensor stored = at::empty(entry.shape, at::TensorOptions().dtype(*scalar_type_of(entry.dtype)));
    folder.read(parameter.key(), 0, entry.numel(), stored.data_ptr());
    at::Tensor target = parameter.value();
    target.copy_(stored);
  }
}

}  // namespace fsdp::models
