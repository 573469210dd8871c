#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/search/search_space.h"

namespace fsdp::plan {

struct Candidate {
  Setup setup;
  Price price;
  std::string reason;           // why it is not among the best; empty if it is
  std::optional<size_t> rival;  // in SearchResult::best, whom the reason speaks of
};

struct SearchResult {
  std::vector<Candidate> best;    // fast ones first: each takes less memory than all before it
  std::vector<Candidate> losers;  // fast ones first
  int64_t num_tried = 0;
};

// Every mesh whose groups fit the nodes, strategy, microbatch, recomputation, precision and rest between forward and
// backward; best are those that no other beats in both time and memory. Time is that of a step as predicted, or its
// floor, then the time of all communication (less of it is hidden more easily); predictions that differ by less than
// 0.5 % count as equal. Throws io::Error(kUsage) if nothing
// fits, with the smallest plan and by how much it misses, and std::invalid_argument where why_no_forecast() of the base
// has a reason.
SearchResult search(const PlannedModel& model, const SearchSpace& space);

std::string to_text(const SearchResult& result, const SearchSpace& space);
nlohmann::json to_json(const SearchResult& result);

}  // namespace fsdp::plan
