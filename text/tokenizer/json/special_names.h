#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace fsdp::tokenizer {

// What the files beside tokenizer.json say: tokens by their text, not by id.
struct SpecialNames {
  std::optional<std::string> bos;
  std::optional<std::string> eos;
  std::optional<std::string> pad;
  std::string chat_template;
  uint64_t hash = 0;  // of the files; 0 if there are none
};

// Of tokenizer_config.json, special_tokens_map.json and chat_template.jinja in `folder`, each of which may be missing.
// Throws Error(kModel).
SpecialNames read_special_names(const std::filesystem::path& folder);

}  // namespace fsdp::tokenizer
