#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/io/temporary_folder.h"
#include "text/tokenizer/tokenizer.h"

namespace fsdp::tokenizer {

// A folder for the files of one tokenizer, removed at the end.
class TokenizerFolder {
 public:
  const std::filesystem::path& path() const { return folder_.path(); }
  void write(const std::string& name, const std::string& content) const { io::write_text(folder_ / name, content); }
  // Writes tokenizer.json and loads the folder.
  Tokenizer load(const nlohmann::json& tokenizer) const;

 private:
  io::TemporaryFolder folder_;
};

using Merges = std::vector<std::pair<std::string, std::string>>;

// A tokenizer.json of GPT-2's kind: ids 0..255 are the characters of the byte alphabet in the order of their bytes,
// then what the merges make. `merges` are written in the byte alphabet.
nlohmann::json byte_level_json(const Merges& merges);
// One of Llama 2's kind: <unk>, <s>, </s>, 256 byte tokens, the characters of `alphabet`, then what the merges make.
nlohmann::json llama2_json(const std::string& alphabet, const Merges& merges);
// An entry of "added_tokens".
nlohmann::json added_token(int id, const std::string& content, const nlohmann::json& flags = {});

}  // namespace fsdp::tokenizer
