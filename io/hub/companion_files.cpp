#include "io/hub/companion_files.h"

#include <system_error>

namespace fsdp::io {

namespace {

// What `fsdp` or Hugging Face keep beside the weights.
constexpr const char* kCompanions[] = {
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "fsdp_tokenizer.json",
};

}  // namespace

std::vector<std::filesystem::path> companion_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const char* name : kCompanions) {
    if (std::filesystem::is_regular_file(folder / name, error)) files.push_back(folder / name);
  }
  return files;
}

}  // namespace fsdp::io
