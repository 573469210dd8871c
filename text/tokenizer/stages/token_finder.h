#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::tokenizer {

// Finds any of a set of texts: the leftmost, and there the longest. Takes hardly more memory than the texts. Immutable;
// const calls are thread-safe.
class TokenFinder {
 public:
  struct Needle {
    std::string text;  // not empty
    int32_t value;
  };
  // Of equal texts the last counts.
  explicit TokenFinder(std::vector<Needle> needles = {});

  struct Match {
    size_t first;
    size_t end;
    int32_t value;
  };
  std::optional<Match> find(std::string_view text, size_t from) const;
  bool is_empty() const { return needles_.empty(); }

 private:
  size_t next_candidate(std::string_view text, size_t from) const;
  std::optional<Match> longest_at(std::string_view text, size_t first) const;

  std::vector<Needle> needles_;           // sorted by text, each once
  std::array<uint32_t, 257> begin_of_{};  // where those are that begin with a byte, up to those of the next
  int only_start_ = -1;                   // the byte that all begin with, if there is one
};

}  // namespace fsdp::tokenizer
