#include "io/weights/adapter.h"

#include <algorithm>
#include <optional>

#include "io/base/element_cast.h"
#include "io/base/error.h"

namespace fsdp::io {

namespace {

constexpr std::string_view kA = ".lora_A.weight";
constexpr std::string_view kB = ".lora_B.weight";

Error model_error(const WeightSource& source, const std::string& detail) {
  return Error(ErrorKind::kModel, "[adapter] " + in_quotes(source.path().native()) + ": " + detail);
}

struct Factor {
  std::string module;
  bool is_a = false;
};

std::optional<Factor> factor_of(std::string_view name) {
  if (name.starts_with(kAdapterPrefix)) name.remove_prefix(kAdapterPrefix.size());
  if (!is_adapter_name(name)) return std::nullopt;
  return Factor{std::string(name.substr(0, name.size() - kA.size())), name.ends_with(kA)};
}

void check_factor(const WeightSource& source, const WeightTensor& tensor, int64_t rank, bool is_a) {
  const bool fits = tensor.shape.size() == 2 && tensor.shape[is_a ? 0 : 1] == rank;
  if (fits && tensor.dtype && is_float(*tensor.dtype)) return;
  throw model_error(source, in_quotes(tensor.name) + ": got " + tensor.type + " with " +
                                std::to_string(tensor.shape.size()) + " dims, expected floats in two dims, the " +
                                (is_a ? "first" : "second") + " of them " + std::to_string(rank) + ", the rank.");
}

// Every factor has its twin.
void check_pairs(const WeightSource& source, const Adapter& adapter) {
  if (adapter.modules.empty()) throw model_error(source, "got no tensors *.lora_A.weight, expected an adapter.");
  for (const auto& [name, factors] : adapter.modules) {
    if (factors.in >= 0 && factors.out >= 0) continue;
    throw model_error(source, in_quotes(name) + ": got only one of lora_A and lora_B, expected both.");
  }
}

}  // namespace

bool is_adapter_name(std::string_view parameter) { return parameter.ends_with(kA) || parameter.ends_with(kB); }

Adapter read_adapter(const WeightSource& source) {
  if (!source.adapter_config()) {
    throw Error(ErrorKind::kUsage, "[adapter] " + in_quotes(source.path().native()) + ": got a " +
                                       source.description() +
                                       ", expected a LoRA adapter. Pass a folder with adapter_config.json, or a "
                                       "checkpoint of a run with tune.method = \"lora\".");
  }
  Adapter adapter;
  adapter.config = parse_adapter_config(*source.adapter_config(), in_quotes(source.path().native()));
  const int64_t rank = adapter.config.rank;
  std::vector<size_t> wanted;
  std::map<size_t, std::vector<float>*> places;
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    const WeightTensor& tensor = source.tensors()[i];
    const std::optional<Factor> factor = factor_of(tensor.name);
    if (!factor && !tensor.name.starts_with(kAdapterPrefix)) continue;  // of the base, in a checkpoint
    if (!factor) {
      throw model_error(source, in_quotes(tensor.name) +
                                    ": expected *.lora_A.weight and *.lora_B.weight only. Merge "
                                    "it in peft and use the model.");
    }
    check_factor(source, tensor, rank, factor->is_a);
    LowRank& factors = adapter.modules.try_emplace(factor->module, LowRank{rank, -1, -1, {}, {}}).first->second;
    (factor->is_a ? factors.in : factors.out) = tensor.shape[factor->is_a ? 1 : 0];
    wanted.push_back(i);
    places[i] = factor->is_a ? &factors.a : &factors.b;
    places[i]->resize(static_cast<size_t>(tensor.numel()));
  }
  check_pairs(source, adapter);
  source.read(wanted, [&](size_t index, int64_t first, int64_t count, const void* elements) {
    cast_elements(*source.tensors()[index].dtype, elements, DType::F32, places.at(index)->data() + first, count);
  });
  return adapter;
}

void add_low_rank(const LowRank& factors, double scale, int64_t first, int64_t count, float* weights) {
  const auto factor = static_cast<float>(scale);
  std::vector<float> sums(static_cast<size_t>(std::min(factors.in, count)));
  for (int64_t element = first; element < first + count;) {
    const int64_t row = element / factors.in, column = element % factors.in;
    const int64_t width = std::min(factors.in - column, first + count - element);
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (int64_t k = 0; k < factors.rank; ++k) {
      const float b = factors.b[static_cast<size_t>(row * factors.rank + k)];
      const float* a = factors.a.data() + k * factors.in + column;
      for (int64_t j = 0; j < width; ++j) sums[static_cast<size_t>(j)] += b * a[j];
    }
    float* out = weights + (element - first);
    for (int64_t j = 0; j < width; ++j) out[j] += factor * sums[static_cast<size_t>(j)];
    element += width;
  }
}

}  // namespace fsdp::io
