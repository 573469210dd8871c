#pragma once

#include <filesystem>
#include <memory>

#include "text/tokenizer/pipeline.h"

namespace fsdp::tokenizer {

// Reads tokenizer.json and, from beside it, tokenizer_config.json, special_tokens_map.json and chat_template.jinja.
// Throws Error(kModel) naming file and key.
std::shared_ptr<const Pipeline> read_tokenizer_json(const std::filesystem::path& file);

}  // namespace fsdp::tokenizer
