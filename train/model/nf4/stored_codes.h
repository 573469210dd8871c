#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/base/dtype.h"
#include "kernels/raw/formats/nf4.h"

namespace fsdp::train {

// What bitsandbytes stores beside the codes "X.weight", in the order of the names.
enum class Beside { kAbsmax, kNestedAbsmax, kNestedMap, kMap, kState };
inline constexpr Beside kBeside[] = {Beside::kAbsmax, Beside::kNestedAbsmax, Beside::kNestedMap, Beside::kMap,
                                     Beside::kState};

// ".absmax", to be put behind "X.weight".
const char* suffix(Beside part);

struct StoredPart {
  io::DType dtype;
  int64_t numel;
};
StoredPart stored_part(Beside part, const kernels::raw::Nf4Layout& layout);

inline constexpr int64_t kMostStateBytes = 1 << 16;  // of a kState that is read

// The JSON of kState, of the same length for every weight: readers skip the spaces behind it.
std::string state_text(const std::vector<int64_t>& shape, float mean);

// What such a text says. Throws std::invalid_argument, saying what was got and what is read, for another format than
// NF4 with double quantisation in blocks of 64 and 256.
struct WeightState {
  std::vector<int64_t> shape;  // [out, in]
  float mean = 0;
};
WeightState parse_state(const std::string& text);

// Likewise, for kMap and kNestedMap with other numbers than NF4 has; last digits may differ, since they are computed.
void check_map(Beside map, const float* values);

// Whether a config.json says that weights are bitsandbytes' codes, of whatever type.
bool is_of_bitsandbytes(const nlohmann::json& config);

}  // namespace fsdp::train
