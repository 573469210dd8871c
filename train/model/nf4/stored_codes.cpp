#include "train/model/nf4/stored_codes.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace fsdp::train {
namespace {

using kernels::raw::kNf4Block;
using kernels::raw::kNf4Group;
using kernels::raw::Nf4Layout;

constexpr int64_t kStateBytes = 256;

}  // namespace

const char* suffix(Beside part) {
  switch (part) {
    case Beside::kAbsmax:
      return ".absmax";
    case Beside::kNestedAbsmax:
      return ".nested_absmax";
    case Beside::kNestedMap:
      return ".nested_quant_map";
    case Beside::kMap:
      return ".quant_map";
    case Beside::kState:
      return ".quant_state.bitsandbytes__nf4";
  }
  return "";
}

StoredPart stored_part(Beside part, const Nf4Layout& layout) {
  switch (part) {
    case Beside::kAbsmax:
      return {io::DType::U8, layout.num_blocks()};
    case Beside::kNestedAbsmax:
      return {io::DType::F32, layout.num_groups()};
    case Beside::kNestedMap:
      return {io::DType::F32, 256};
    case Beside::kMap:
      return {io::DType::F32, 16};
    case Beside::kState:
      return {io::DType::U8, kStateBytes};
  }
  return {io::DType::U8, 0};
}

std::string state_text(const std::vector<int64_t>& shape, float mean) {
  const nlohmann::json state = {{"quant_type", "nf4"},
                                {"blocksize", kNf4Block},
                                {"dtype", "bfloat16"},
                                {"shape", shape},
                                {"nested_blocksize", kNf4Group},
                                {"nested_dtype", "float32"},
                                {"nested_offset", static_cast<double>(mean)}};
  std::string text = state.dump();
  text.resize(static_cast<size_t>(kStateBytes), ' ');
  return text;
}

WeightState parse_state(const std::string& text) {
  const nlohmann::json state = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!state.is_object()) throw std::invalid_argument("got no JSON object");
  const auto expect = [&](const char* key, const nlohmann::json& value) {
    const nlohmann::json is = state.contains(key) ? state.at(key) : nlohmann::json();
    if (is != value)
      throw std::invalid_argument(std::string(key) + ": got " + is.dump() + ", expected " + value.dump());
  };
  expect("quant_type", "nf4");
  expect("blocksize", kNf4Block);
  expect("nested_blocksize", kNf4Group);
  expect("nested_dtype", "float32");
  const nlohmann::json shape = state.value("shape", nlohmann::json());
  const nlohmann::json mean = state.value("nested_offset", nlohmann::json());
  const bool is_matrix = shape.is_array() && shape.size() == 2 && shape[0].is_number_unsigned() &&
                         shape[1].is_number_unsigned() && shape[0] < (int64_t{1} << 31) &&
                         shape[1] < (int64_t{1} << 31);
  if (!is_matrix) throw std::invalid_argument("shape: got " + shape.dump() + ", expected two sizes");
  if (!mean.is_number()) throw std::invalid_argument("nested_offset: got " + mean.dump() + ", expected a number");
  return {{shape[0].get<int64_t>(), shape[1].get<int64_t>()}, mean.get<float>()};
}

void check_map(Beside map, const float* values) {
  constexpr float kRounding = 1e-6F;
  const bool is_nested = map == Beside::kNestedMap;
  const float* const ours = is_nested ? kernels::raw::nf4_scale_values() : kernels::raw::nf4_values();
  for (int code = 0; code < (is_nested ? 256 : 16); ++code) {
    if (!(std::fabs(values[code] - ours[code]) <= kRounding))
      throw std::invalid_argument("got " + std::to_string(values[code]) + " for code " + std::to_string(code) +
                                  ", expected " + std::to_string(ours[code]) + " as NF4 has it");
  }
}

bool is_of_bitsandbytes(const nlohmann::json& config) {
  if (!config.is_object() || !config.contains("quantization_config")) return false;
  const nlohmann::json& said = config.at("quantization_config");
  return said.is_object() && said.contains("quant_method") && said.at("quant_method") == "bitsandbytes";
}

}  // namespace fsdp::train
