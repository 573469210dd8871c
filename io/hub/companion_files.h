#pragma once

#include <filesystem>
#include <vector>

namespace fsdp::io {

// Those of the files that belong to a model besides weights and config.json (tokenizer, ...) which `folder` has.
std::vector<std::filesystem::path> companion_files(const std::filesystem::path& folder);

// Those of them that make up its tokenizer.
std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& folder);

}  // namespace fsdp::io
