#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::tokenizer {

// Finds any of a set of texts: the leftmost, and there the longest. Immutable; const calls are thread-safe.
class TokenFinder {
 public:
  struct Needle {
    std::string text;  // not empty
    int32_t value;
  };
  explicit TokenFinder(const std::vector<Needle>& needles = {});

  struct Match {
    size_t first;
    size_t end;
    int32_t value;
  };
  std::optional<Match> find(std::string_view text, size_t from) const;
  bool is_empty() const { return nodes_.size() <= 1; }

 private:
  struct Edge {
    unsigned char byte;
    uint32_t node;
  };
  // A node of a trie; its edges are edges_[first_edge .. + num_edges).
  struct Node {
    uint32_t first_edge = 0;
    uint32_t num_edges = 0;
    int32_t value = -1;
  };

  size_t next_candidate(std::string_view text, size_t from) const;
  uint32_t follow(uint32_t node, char byte) const;

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::array<bool, 256> starts_{};  // first bytes
  int only_start_ = -1;             // if there is one only
};

}  // namespace fsdp::tokenizer
