#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::io {

// Those of the files that belong to a model besides weights and config.json (tokenizer, ...) which `folder` has.
std::vector<std::filesystem::path> companion_files(const std::filesystem::path& folder);

// Those of them that make up its tokenizer.
std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& folder);

// Names and hashes of files as JSON, {"tokenizer.json": "16 hexadecimal digits", ...}: for who stores where files lie.
std::string identify_files(const std::vector<std::filesystem::path>& files);
// Those of the tokenizer's files in `folder` that are what `identity` says. Whoever names a folder in a checkpoint of
// his making so gets no file that he does not have. Throws Error(kModel) if `identity` is not such a JSON text;
// `origin` begins the message.
std::vector<std::filesystem::path> identified_tokenizer_files(const std::filesystem::path& folder,
                                                              std::string_view identity, std::string_view origin);

}  // namespace fsdp::io
