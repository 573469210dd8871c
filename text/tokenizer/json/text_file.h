#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp::tokenizer {

// A whole file. Throws Error(kModel) if it is missing or larger than `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes);

}  // namespace fsdp::tokenizer
