#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

namespace fsdp::io {

// generation_config.json as transformers makes it of a config.json: the tokens at which a generation begins and ends.
nlohmann::json generation_config(const nlohmann::json& config);

// The tokens that end a text by a model folder's generation_config.json: models that answer often name more of them
// there than in config.json. None if there is no such file. Throws Error(kModel) for what is no list of ids below
// `vocab_size`.
std::vector<int64_t> end_tokens_of(const std::filesystem::path& folder, int64_t vocab_size);

}  // namespace fsdp::io
