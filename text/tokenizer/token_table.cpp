#include "text/tokenizer/token_table.h"

#include <utility>

namespace fsdp::tokenizer {

void TokenTable::set(int32_t id, std::string token) {
  const auto index = static_cast<size_t>(id);
  flags_[index] |= kExists;
  ids_.insert_or_assign(token, id);
  decoded_[index] = token;
  tokens_[index] = std::move(token);
}

std::optional<int32_t> TokenTable::find(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

}  // namespace fsdp::tokenizer
