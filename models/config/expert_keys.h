// What config.json says of experts, family by family.
#pragma once

#include <nlohmann/json.hpp>

#include "models/config/config_reader.h"
#include "models/config/decoder_config.h"
#include "models/config/family.h"

namespace fsdp::models {

// Reads `config.experts`. REQUIRES: the other sizes of `config` are known.
void read_experts(ConfigReader& reader, const Family& family, DecoderConfig& config);

// Writes them, so that read_experts() gives them back.
void add_experts(const Family& family, const DecoderConfig& config, nlohmann::json& result);

// Throws io::Error(kUsage) for experts that the family's config.json could not tell of.
void check_experts(const Family& family, const DecoderConfig& config);

}  // namespace fsdp::models
