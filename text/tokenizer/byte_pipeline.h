#pragma once

#include <filesystem>
#include <memory>

#include "text/tokenizer/pipeline.h"

namespace fsdp::tokenizer {

// The byte tokenizer of text/tokenizer/byte_tokenizer.h.
std::shared_ptr<const Pipeline> make_byte_pipeline();

// Checks fsdp_tokenizer.json, the file that marks a folder as one of the byte tokenizer. Throws Error(kModel).
void check_byte_marker(const std::filesystem::path& file);

}  // namespace fsdp::tokenizer
