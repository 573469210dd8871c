#include "io/hub/companion_files.h"

#include <nlohmann/json.hpp>
#include <system_error>

#include "io/base/hash.h"
#include "io/base/json.h"

namespace fsdp::io {

namespace {

// What `fsdp` or Hugging Face keep beside the weights.
constexpr const char* kGenerationConfig = "generation_config.json";
constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",   "vocab.json",
    "merges.txt",     "tokenizer.model",       "chat_template.jinja",     "fsdp_tokenizer.json",
};

}  // namespace

std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const char* name : kTokenizerFiles) {
    if (std::filesystem::is_regular_file(folder / name, error)) files.push_back(folder / name);
  }
  return files;
}

std::vector<std::filesystem::path> companion_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files = tokenizer_files(folder);
  std::error_code error;
  const std::filesystem::path generation = folder / kGenerationConfig;
  if (std::filesystem::is_regular_file(generation, error)) files.insert(files.begin(), generation);
  return files;
}

std::string identify_files(const std::vector<std::filesystem::path>& files) {
  nlohmann::json hashes = nlohmann::json::object();
  for (const std::filesystem::path& file : files) hashes[file.filename().native()] = hash_text(hash_file(file));
  return hashes.dump();
}

std::vector<std::filesystem::path> identified_tokenizer_files(const std::filesystem::path& folder,
                                                              std::string_view identity, std::string_view origin) {
  const nlohmann::json hashes = parse_json(identity, origin, {.kind = ErrorKind::kModel});
  std::vector<std::filesystem::path> files = tokenizer_files(folder);
  std::erase_if(files, [&](const std::filesystem::path& file) {
    const auto hash = hashes.find(file.filename().native());
    return hash == hashes.end() || *hash != hash_text(hash_file(file, ErrorKind::kModel));
  });
  return files;
}

}  // namespace fsdp::io
