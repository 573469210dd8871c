#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fsdp::tokenizer {

// All tokens by id: vocabulary and added tokens. Filled once, then only read.
class TokenTable {
 public:
  // Room for the ids 0..size-1. Before the first set().
  explicit TokenTable(size_t size = 0) : tokens_(size), decoded_(size), flags_(size, 0) {}

  // `id` must be below size(). A second token of the same id takes its place; the first keeps its find().
  void set(int32_t id, std::string token);
  // What the decoder gets for `id`, where that is not the token itself.
  void set_decoded(int32_t id, std::string text) { decoded_[static_cast<size_t>(id)] = std::move(text); }
  void set_special(int32_t id) { flags_[static_cast<size_t>(id)] |= kSpecial; }

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  bool has(int32_t id) const { return id >= 0 && id < size() && (flags_[static_cast<size_t>(id)] & kExists) != 0; }
  bool is_special(int32_t id) const { return has(id) && (flags_[static_cast<size_t>(id)] & kSpecial) != 0; }
  std::optional<int32_t> find(std::string_view token) const;

  // Both only for ids that has() knows.
  const std::string& token(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  const std::string& decoded(int32_t id) const { return decoded_[static_cast<size_t>(id)]; }

 private:
  static constexpr uint8_t kExists = 1;
  static constexpr uint8_t kSpecial = 2;

  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  std::vector<std::string> tokens_;
  std::vector<std::string> decoded_;
  std::vector<uint8_t> flags_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
};

}  // namespace fsdp::tokenizer
