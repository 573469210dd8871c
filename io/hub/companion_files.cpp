#include "io/hub/companion_files.h"

#include <system_error>

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

}  // namespace fsdp::io
