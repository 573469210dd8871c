#include "models/load_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "io/base/error.h"
#include "models/config/stored_parts.h"
#include "models/config/text_table.h"

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

std::string describe(const std::vector<int64_t>& shape) {
  std::ostringstream out;
  out << at::IntArrayRef(shape);
  return out.str();
}

// In the file but not needed: a tied head written twice, and frequencies that old versions saved.
bool is_tolerated(const std::string& name) { return name == "lm_head.weight" || name.ends_with("rotary_emb.inv_freq"); }

std::vector<Mismatch> find_mismatches(const std::vector<ExpectedTensor>& expected, const io::ModelFolder& folder) {
  std::vector<Mismatch> mismatches;
  std::set<std::string> known;
  for (const auto& [name, shape, dtype] : expected) {
    known.insert(name);
    const auto location = folder.find(name);
    if (!location) {
      mismatches.push_back({name, "(absent)", describe(shape)});
      continue;
    }
    const io::TensorEntry& entry = *location->entry;
    if (entry.shape != shape)
      mismatches.push_back({name, describe(entry.shape), describe(shape)});
    else if (dtype && entry.dtype != *dtype)
      mismatches.push_back({name, std::string(io::name(entry.dtype)), std::string(io::name(*dtype))});
    else if (!dtype && !scalar_type_of(entry.dtype))
      mismatches.push_back({name, std::string(io::name(entry.dtype)), "BF16, F16, F32 or F64"});
  }
  for (const std::string& name : folder.names())
    if (known.count(name) == 0 && !is_tolerated(name))
      mismatches.push_back({io::in_quotes(name), describe(folder.find(name)->entry->shape), "(absent)"});
  return mismatches;
}

}  // namespace

void check_weights(const std::vector<ExpectedTensor>& expected, const io::ModelFolder& folder) {
  const std::vector<Mismatch> mismatches = find_mismatches(expected, folder);
  if (mismatches.empty()) return;
  constexpr size_t kMostRows = 100;
  std::vector<Mismatch> rows = {{"tensor", "in file", "in model"}};
  rows.insert(rows.end(), mismatches.begin(),
              mismatches.begin() + static_cast<std::ptrdiff_t>(std::min(mismatches.size(), kMostRows)));
  if (mismatches.size() > kMostRows) rows.push_back({"...", "...", "..."});
  throw io::Error(io::ErrorKind::kModel, "[load_weights] " + io::in_quotes(folder.path().string()) + ": " +
                                             std::to_string(mismatches.size()) +
                                             " tensor(s) do not fit config.json; use the config.json and weights of "
                                             "one model" +
                                             text_table(rows));
}

std::vector<ExpectedTensor> expected_tensors(const std::vector<ExpectedTensor>& parameters,
                                             const DecoderConfig& config) {
  std::vector<ExpectedTensor> expected;
  for (const ExpectedTensor& parameter : parameters)
    for (NamedShape& part : stored_parts(config, {parameter.name, parameter.shape}))
      expected.push_back({std::move(part.name), std::move(part.shape)});
  return expected;
}

void load_weights(torch::nn::Module& module, const DecoderConfig& config, const io::ModelFolder& folder) {
  at::NoGradGuard no_grad;
  const auto parameters = module.named_parameters();
  std::vector<ExpectedTensor> expected;
  for (const auto& parameter : parameters) expected.push_back({parameter.key(), parameter.value().sizes().vec()});
  check_weights(expected_tensors(expected, config), folder);
  for (const auto& parameter : parameters) {
    const at::Tensor flat = parameter.value().view(-1);
    int64_t begin = 0;
    for (const NamedShape& part : stored_parts(config, {parameter.key(), parameter.value().sizes().vec()})) {
      const io::TensorEntry& entry = *folder.find(part.name)->entry;
      const at::Tensor stored = at::empty({entry.numel()}, at::TensorOptions().dtype(*scalar_type_of(entry.dtype)));
      folder.read(part.name, 0, entry.numel(), stored.data_ptr());
      flat.narrow(0, begin, entry.numel()).copy_(stored);
      begin += entry.numel();
    }
  }
}

}  // namespace fsdp::models
