#include <algorithm>
#include <array>
#include <cstdio>

#include "fsdp/base/units.h"
#include "plan/search/limits.h"
#include "plan/search/search.h"

namespace fsdp::plan {
namespace {

std::string fill(const std::string& text, size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

std::string percent_text(const char* format, double share) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), format, 100 * share);
  return text.data();
}

// Of a forecast: what communication holds up, and MFU; else what all communication takes.
std::string price_columns(const Price& price) {
  const std::string common = "  " + fill(format_bytes(price.memory), 11) + fill(duration_text(price.seconds()), 14);
  if (!price.step) return common + fill(duration_text(price.floor.communication()), 14);
  return common + fill(duration_text(price.step->exposed_seconds), 14) +
         fill(percent_text("%.1f %%", price.step->mfu), 9);
}

std::string header(const SearchSpace& space) {
  return space.hardware ? "       memory          step       exposed      MFU"
                        : "       memory    step floor communication";
}

std::string time_text(const SearchSpace& space) {
  return space.hardware ? "time is predicted for " + space.hardware->name
                        : "time is a floor: operations and bytes over rates";
}

// How much faster, of the time as it is.
std::string gain_text(const Price& now, const Price& changed) {
  return fill(percent_text("%+.1f %%", changed.seconds() / now.seconds() - 1), 10);
}

nlohmann::json price_json(const Price& price) {
  const StepFloor& floor = price.floor;
  nlohmann::json json = {{"memory", price.memory},
                         {"floor",
                          {{"compute_seconds", floor.compute},
                           {"node_link_seconds", floor.node_links},
                           {"network_seconds", floor.network},
                           {"seconds", floor.seconds()},
                           {"bound", std::string(name(floor.bound()))}}}};
  if (price.step) {
    json["step_ms"] = 1e3 * price.step->seconds;
    json["exposed_ms"] = 1e3 * price.step->exposed_seconds;
    json["mfu"] = price.step->mfu;
  }
  return json;
}

nlohmann::json candidate_json(const Candidate& candidate, const SearchResult& result) {
  nlohmann::json json = price_json(candidate.price);
  json["setup"] = describe(candidate.setup);
  json["reason"] = candidate.reason + (candidate.rival ? " " + describe(result.best[*candidate.rival].setup) : "");
  return json;
}

std::string number_text(size_t index) { return "[" + std::to_string(index + 1) + "]"; }

// The fastest that fit, and of those faster than the best that do not fit, the ones that miss it by least.
std::vector<Candidate> telling_losers(const SearchResult& result, const SearchSpace& space) {
  constexpr size_t kOfEach = 5;
  std::vector<Candidate> fit, miss;
  for (const Candidate& loser : result.losers) {
    const bool fits = loser.price.memory <= space.memory;
    const bool is_faster = loser.price.seconds() < result.best.front().price.seconds();
    if (fits && fit.size() < kOfEach) fit.push_back(loser);
    if (!fits && is_faster) miss.push_back(loser);
  }
  std::stable_sort(miss.begin(), miss.end(),
                   [](const Candidate& a, const Candidate& b) { return a.price.memory < b.price.memory; });
  miss.resize(std::min(miss.size(), kOfEach));
  fit.insert(fit.end(), miss.begin(), miss.end());
  return fit;
}

}  // namespace

std::string to_text(const SearchResult& result, const SearchSpace& space) {
  std::string text = std::to_string(result.num_tried) + " plans for " + format_bytes(space.memory) + " per rank and " +
                     format_count(space.base.tokens_per_step()) + " tokens per step; " + time_text(space) + "\n" +
                     std::to_string(result.best.size()) + " that no other beats in time and memory:\n" + header(space) +
                     "  setup\n";
  for (size_t i = 0; i < result.best.size(); ++i)
    text += price_columns(result.best[i].price) + "  " + number_text(i) + " " + describe(result.best[i].setup) + "\n";
  text += "some of " + std::to_string(result.losers.size()) + " others, and why not (all: --json):\n";
  for (const Candidate& loser : telling_losers(result, space)) {
    text += price_columns(loser.price) + "  " + describe(loser.setup) + ": " + loser.reason +
            (loser.rival ? " " + number_text(*loser.rival) : "") + "\n";
  }
  return text;
}

std::string to_text(const Limits& limits, const SearchSpace& space) {
  std::string text = "what limits it: " + limits.limiting + "\n" + header(space) + "    change  of one thing\n" +
                     price_columns(limits.price) + std::string(10, ' ') + "  as it is\n";
  for (const Knob& knob : limits.knobs) {
    const bool too_much = space.memory > 0 && knob.price.memory > space.memory;
    text += price_columns(knob.price) + gain_text(limits.price, knob.price) + "  " + knob.change +
            (too_much ? " (still too much)" : "") + "\n";
  }
  if (limits.knobs.empty()) text += "  no change of one thing helps\n";
  return text;
}

nlohmann::json to_json(const SearchResult& result) {
  nlohmann::json best = nlohmann::json::array(), losers = nlohmann::json::array();
  for (const Candidate& candidate : result.best) best.push_back(candidate_json(candidate, result));
  for (const Candidate& candidate : result.losers) losers.push_back(candidate_json(candidate, result));
  return {{"tried", result.num_tried}, {"best", best}, {"losers", losers}};
}

nlohmann::json to_json(const Limits& limits) {
  nlohmann::json knobs = nlohmann::json::array();
  for (const Knob& knob : limits.knobs) {
    nlohmann::json json = price_json(knob.price);
    json["change"] = knob.change;
    json["gain_percent"] = 100 * (1 - knob.price.seconds() / limits.price.seconds());
    knobs.push_back(json);
  }
  nlohmann::json json = price_json(limits.price);
  json["limiting"] = limits.limiting;
  json["knobs"] = knobs;
  return json;
}

}  // namespace fsdp::plan
