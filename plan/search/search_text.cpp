#include <array>
#include <cstdio>

#include "fsdp/base/units.h"
#include "plan/search/search.h"

namespace fsdp::plan {
namespace {

std::string milliseconds(double seconds) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.1f ms", 1e3 * seconds);
  return text.data();
}

std::string fill(const std::string& text, size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

std::string candidate_line(const std::string& what, int64_t memory, const StepFloor& floor) {
  return "  " + fill(format_bytes(memory), 11) + fill(milliseconds(floor.seconds()), 14) +
         fill(milliseconds(floor.communication()), 14) + "  " + what + "\n";
}

constexpr const char* kHeader = "       memory    step floor communication  ";

nlohmann::json floor_json(const StepFloor& floor) {
  return {{"compute_seconds", floor.compute},
          {"node_link_seconds", floor.node_links},
          {"network_seconds", floor.network},
          {"seconds", floor.seconds()},
          {"bound", std::string(name(floor.bound()))}};
}

nlohmann::json candidate_json(const Candidate& candidate) {
  return {{"setup", describe(candidate.setup)},
          {"memory", candidate.memory},
          {"floor", floor_json(candidate.floor)},
          {"reason", candidate.reason}};
}

}  // namespace

std::string to_text(const SearchResult& result, const SearchSpace& space) {
  std::string text = std::to_string(result.num_tried) + " plans for " + format_bytes(space.memory) + " per rank and " +
                     format_count(space.base.tokens_per_step()) + " tokens per step; " +
                     std::to_string(result.best.size()) + " that no other beats in time and memory:\n" + kHeader +
                     "setup\n";
  for (const Candidate& candidate : result.best)
    text += candidate_line(describe(candidate.setup), candidate.memory, candidate.floor);
  constexpr size_t kShown = 10;
  text += "the first of " + std::to_string(result.losers.size()) + " others, and why not (all: --json):\n";
  for (size_t i = 0; i < std::min(kShown, result.losers.size()); ++i) {
    const Candidate& loser = result.losers[i];
    text += candidate_line(describe(loser.setup) + ": " + loser.reason, loser.memory, loser.floor);
  }
  return text;
}

std::string to_text(const Limits& limits, const Report& report, const SearchSpace& space) {
  std::string text = "what limits it: " + limits.limiting + "\n" + kHeader + "\n" +
                     candidate_line("as it is", report.memory.total(), limits.floor);
  for (const Knob& knob : limits.knobs) {
    const bool too_much = space.memory > 0 && knob.memory > space.memory;
    text += candidate_line(knob.change + (too_much ? " (still too much)" : ""), knob.memory, knob.floor);
  }
  if (limits.knobs.empty()) text += "  no change of one thing helps\n";
  return text;
}

nlohmann::json to_json(const SearchResult& result) {
  nlohmann::json best = nlohmann::json::array(), losers = nlohmann::json::array();
  for (const Candidate& candidate : result.best) best.push_back(candidate_json(candidate));
  for (const Candidate& candidate : result.losers) losers.push_back(candidate_json(candidate));
  return {{"tried", result.num_tried}, {"best", best}, {"losers", losers}};
}

nlohmann::json to_json(const Limits& limits) {
  nlohmann::json knobs = nlohmann::json::array();
  for (const Knob& knob : limits.knobs)
    knobs.push_back({{"change", knob.change}, {"memory", knob.memory}, {"floor", floor_json(knob.floor)}});
  return {{"limiting", limits.limiting}, {"floor", floor_json(limits.floor)}, {"knobs", knobs}};
}

}  // namespace fsdp::plan
