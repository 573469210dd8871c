#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"

namespace fsdp::train {

// Reads a TOML file ("" = none: the defaults) and applies overrides of the form "--section.key=value", in order.
// Throws Error(kUsage) that names file, line and column, or the override, for a syntax error, an unknown key (with the
// nearest key if one is near), a value of the wrong type or outside its range, and combinations that make no sense.
Config load_config(const std::string& path, const std::vector<std::string>& overrides);

// Every key with its value, as TOML that load_config() reads back unchanged.
std::string config_to_toml(const Config& config);

// What config_to_toml() wrote. Throws Error(kUsage).
Config parse_config(const std::string& text);

}  // namespace fsdp::train
