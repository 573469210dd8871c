#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace fsdp::tokenizer {

// How a tokenizer does on texts with the ids and texts that another implementation computed for them.
struct CaseReport {
  struct Count {
    int64_t num_cases = 0;
    int64_t num_different = 0;
  };
  std::map<std::string, Count> kinds;
  std::vector<std::string> differences;  // the first ones, each in one printable line
  int64_t num_cases = 0;
  int64_t num_different = 0;
};

// Compares with a cases.json: a list of objects with kind, text, ids, ids_special, decoded and, where it differs from
// decoded, decoded_skip, as in the golden fixtures. Every case also decodes id by id. Keeps at most `most` differences.
// Throws Error(kData) for a file of another layout.
CaseReport check_cases(const Tokenizer& tokenizer, const std::filesystem::path& cases, size_t most = 10);

}  // namespace fsdp::tokenizer
