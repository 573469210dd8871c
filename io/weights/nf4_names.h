#pragma once

#include <string>
#include <string_view>

namespace fsdp::io {

// What stands for ".weight" in the name of a parameter that is the NF4 codes of a weight.
inline constexpr std::string_view kNf4Suffix = ".weight_nf4";

inline bool is_nf4_name(std::string_view parameter) { return parameter.ends_with(kNf4Suffix); }

// "model.layers.0.mlp.up_proj.weight" of "model.layers.0.mlp.up_proj.weight_nf4".
inline std::string weight_of_nf4(std::string_view parameter) {
  parameter.remove_suffix(kNf4Suffix.size() - std::string_view(".weight").size());
  return std::string(parameter);
}

}  // namespace fsdp::io
