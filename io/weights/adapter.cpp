#include "io/weights/adapter.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "io/base/element_cast.h"
#include "io/base/error.h"

namespace fsdp::io {

namespace {

constexpr std::string_view kA = ".lora_A.weight";
constexpr std::string_view kB = ".lora_B.weight";
constexpr std::string_view kNorms = ".lora_magnitude_vector";
constexpr std::string_view kOffsets = ".lora_magnitude_offset";

Error model_error(const WeightSource& source, const std::string& detail) {
  return Error(ErrorKind::kModel, "[adapter] " + in_quotes(source.path().native()) + ": " + detail);
}

enum class FactorRole { kA, kB, kNorms, kOffsets };

struct Factor {
  std::string module;
  FactorRole role = FactorRole::kA;

  bool is_magnitude() const { return role == FactorRole::kNorms || role == FactorRole::kOffsets; }
};

std::optional<Factor> factor_of(std::string_view name) {
  if (name.starts_with(kAdapterPrefix)) name.remove_prefix(kAdapterPrefix.size());
  const std::pair<std::string_view, FactorRole> endings[] = {
      {kA, FactorRole::kA}, {kB, FactorRole::kB}, {kNorms, FactorRole::kNorms}, {kOffsets, FactorRole::kOffsets}};
  for (const auto& [ending, role] : endings) {
    if (name.ends_with(ending)) return Factor{std::string(name.substr(0, name.size() - ending.size())), role};
  }
  return std::nullopt;
}

void check_factor(const WeightSource& source, const WeightTensor& tensor, int64_t rank, const Factor& factor) {
  const bool is_a = factor.role == FactorRole::kA;
  const bool fits =
      factor.is_magnitude() ? tensor.shape.size() == 1 : tensor.shape.size() == 2 && tensor.shape[is_a ? 0 : 1] == rank;
  if (fits && tensor.dtype && is_float(*tensor.dtype)) return;
  if (factor.is_magnitude()) {
    throw model_error(source, in_quotes(tensor.name) + ": got " + tensor.type + " with " +
                                  std::to_string(tensor.shape.size()) + " dims, expected floats in one, a row each.");
  }
  throw model_error(source, in_quotes(tensor.name) + ": got " + tensor.type + " with " +
                                std::to_string(tensor.shape.size()) + " dims, expected floats in two dims, the " +
                                (is_a ? "first" : "second") + " of them " + std::to_string(rank) + ", the rank.");
}

// Every factor has its twin, and magnitudes where the configuration says that there are some, one for each row.
void check_pairs(const WeightSource& source, const Adapter& adapter) {
  if (adapter.modules.empty()) throw model_error(source, "got no tensors *.lora_A.weight, expected an adapter.");
  for (const auto& [name, factors] : adapter.modules) {
    if (factors.in < 0 || factors.out < 0)
      throw model_error(source, in_quotes(name) + ": got only one of lora_A and lora_B, expected both.");
    const bool has_magnitude = factors.magnitude != Magnitude::kNone;
    if (has_magnitude == adapter.config.has_magnitudes &&
        (!has_magnitude || static_cast<int64_t>(factors.norms.size()) == factors.out))
      continue;
    throw model_error(source, in_quotes(name) + ": got " + std::to_string(factors.norms.size()) +
                                  " magnitudes with use_dora = " + (adapter.config.has_magnitudes ? "true" : "false") +
                                  ", expected " + std::to_string(adapter.config.has_magnitudes ? factors.out : 0) +
                                  ".");
  }
}

// Where the values of a tensor go.
std::vector<float>& take_place(LowRank& factors, const Factor& factor, const WeightTensor& tensor) {
  if (factor.role == FactorRole::kA) {
    factors.in = tensor.shape[1];
    return factors.a;
  }
  if (factor.role == FactorRole::kB) {
    factors.out = tensor.shape[0];
    return factors.b;
  }
  factors.magnitude = factor.role == FactorRole::kNorms ? Magnitude::kNorms : Magnitude::kOffsets;
  return factors.norms;
}

}  // namespace

bool is_adapter_name(std::string_view parameter) {
  return parameter.ends_with(kA) || parameter.ends_with(kB) || parameter.ends_with(kOffsets);
}

Adapter read_adapter(const WeightSource& source, AdapterBase base) {
  if (!source.adapter_config()) {
    throw Error(ErrorKind::kUsage, "[adapter] " + in_quotes(source.path().native()) + ": got a " +
                                       source.description() +
                                       ", expected a LoRA adapter. Pass a folder with adapter_config.json, or a "
                                       "checkpoint of a run with tune.method = \"lora\".");
  }
  Adapter adapter;
  adapter.config = parse_adapter_config(*source.adapter_config(), in_quotes(source.path().native()));
  if (adapter.config.holds_part_of_base && base == AdapterBase::kGiven) {
    throw model_error(source,
                      "'init_lora_weights': got an adapter that began with singular values of its base (pissa), which "
                      "fits no base but what was left of it, expected one for a whole base. Pass the run's folder "
                      "`model`, which has it so; of peft, save it with path_initial_model_for_weight_conversion.");
  }
  const int64_t rank = adapter.config.rank;
  std::vector<size_t> wanted;
  std::set<const std::vector<float>*> taken;
  std::map<size_t, std::vector<float>*> places;
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    const WeightTensor& tensor = source.tensors()[i];
    const std::optional<Factor> factor = factor_of(tensor.name);
    if (!factor && !tensor.name.starts_with(kAdapterPrefix)) continue;  // of the base, in a checkpoint
    if (!factor) {
      throw model_error(source, in_quotes(tensor.name) +
                                    ": expected *.lora_A.weight, *.lora_B.weight and *.lora_magnitude_vector only. "
                                    "Merge it in peft and use the model.");
    }
    check_factor(source, tensor, rank, *factor);
    LowRank& factors = adapter.modules.try_emplace(factor->module, LowRank{rank, -1, -1, {}, {}}).first->second;
    wanted.push_back(i);
    places[i] = &take_place(factors, *factor, tensor);
    if (!taken.insert(places[i]).second) {
      throw model_error(source, in_quotes(tensor.name) + ": got this factor of " + in_quotes(factor->module) +
                                    " twice, with the prefix " + in_quotes(kAdapterPrefix) +
                                    " and without, or two kinds of magnitudes; expected it once.");
    }
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

void add_row_squares(int64_t in, int64_t first, int64_t count, const float* weights, double* squares) {
  for (int64_t i = 0; i < count; ++i) squares[(first + i) / in] += static_cast<double>(weights[i]) * weights[i];
}

void scale_rows(int64_t in, int64_t first, int64_t count, const double* row_factors, float* weights) {
  for (int64_t i = 0; i < count; ++i) weights[i] = static_cast<float>(weights[i] * row_factors[(first + i) / in]);
}

double magnitude_factor(const LowRank& factors, int64_t row, double base_squares, double sum_squares) {
  if (factors.magnitude == Magnitude::kNone || sum_squares == 0) return 1;
  const double base = factors.magnitude == Magnitude::kOffsets ? std::sqrt(base_squares) : 0;
  return (base + factors.norms[static_cast<size_t>(row)]) / std::sqrt(sum_squares);
}

void work_in(const LowRank& factors, double scale, int64_t first_row, int64_t num_rows, float* weights) {
  const int64_t in = factors.in;
  for (int64_t row = 0; row < num_rows; ++row) {
    float* const values = weights + row * in;
    double before = 0, after = 0;
    if (factors.magnitude == Magnitude::kOffsets) add_row_squares(in, 0, in, values, &before);
    add_low_rank(factors, scale, (first_row + row) * in, in, values);
    if (factors.magnitude == Magnitude::kNone) continue;
    add_row_squares(in, 0, in, values, &after);
    const double factor = magnitude_factor(factors, first_row + row, before, after);
    scale_rows(in, 0, in, &factor, values);
  }
}

}  // namespace fsdp::io
