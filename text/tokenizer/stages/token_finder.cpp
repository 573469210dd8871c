#include "text/tokenizer/stages/token_finder.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace fsdp::tokenizer {

TokenFinder::TokenFinder(const std::vector<Needle>& needles) {
  std::vector<std::map<unsigned char, uint32_t>> children(1);
  std::vector<int32_t> values(1, -1);
  for (const Needle& needle : needles) {
    uint32_t node = 0;
    for (const char c : needle.text) {
      const auto [edge, is_new] = children[node].try_emplace(static_cast<unsigned char>(c), children.size());
      node = edge->second;
      if (is_new) {
        children.emplace_back();
        values.push_back(-1);
      }
    }
    values[node] = needle.value;
  }
  for (size_t i = 0; i < children.size(); ++i) {
    nodes_.push_back({static_cast<uint32_t>(edges_.size()), static_cast<uint32_t>(children[i].size()), values[i]});
    for (const auto& [byte, node] : children[i]) edges_.push_back({byte, node});
  }
  for (const auto& [byte, node] : children[0]) {
    starts_[byte] = true;
    only_start_ = children[0].size() == 1 ? byte : -1;
  }
}

// Where a text of the set may start, at or after `from`.
size_t TokenFinder::next_candidate(std::string_view text, size_t from) const {
  if (only_start_ >= 0) return std::min(text.find(static_cast<char>(only_start_), from), text.size());
  while (from < text.size() && !starts_[static_cast<unsigned char>(text[from])]) ++from;
  return from;
}

// The child of `node`; 0 if there is none.
uint32_t TokenFinder::follow(uint32_t node, char byte) const {
  const Edge* const first = edges_.data() + nodes_[node].first_edge;
  const Edge* const last = first + nodes_[node].num_edges;
  const auto wanted = static_cast<unsigned char>(byte);
  const Edge* const found =
      std::lower_bound(first, last, wanted, [](const Edge& edge, auto b) { return edge.byte < b; });
  return found != last && found->byte == wanted ? found->node : 0;
}

std::optional<TokenFinder::Match> TokenFinder::find(std::string_view text, size_t from) const {
  if (is_empty()) return std::nullopt;
  for (size_t first = next_candidate(text, from); first < text.size(); first = next_candidate(text, first + 1)) {
    std::optional<Match> longest;
    uint32_t node = 0;
    for (size_t at = first; at < text.size() && (node = follow(node, text[at])) != 0; ++at) {
      if (nodes_[node].value >= 0) longest = Match{first, at + 1, nodes_[node].value};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace fsdp::tokenizer
