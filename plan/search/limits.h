#pragma once

#include <string>
#include <vector>

#include "plan/search/search_space.h"

namespace fsdp::plan {

// What a change is of.
enum class Lever { kRecompute, kMicrobatch, kPrecision, kStages, kPrefetch, kRanks, kSharding };

// A change of one thing, and what the plan costs then.
struct Knob {
  Lever lever;
  std::string change;
  Setup setup;
  Price price;
};

// The part or resource that limits a plan, and the changes that relieve it most, at most three and one of a lever.
struct Limits {
  bool memory_is_short = false;
  std::string limiting;  // in words
  Price price;           // of the plan as it is
  std::vector<Knob> knobs;
};

// Memory where it is short; else what most of the critical path of the predicted step is made of, or, without hardware,
// the busiest resource of its floor. Throws as search() does.
Limits find_limits(const PlannedModel& model, const Report& report, const SearchSpace& space);

std::string to_text(const Limits& limits, const SearchSpace& space);
nlohmann::json to_json(const Limits& limits);

}  // namespace fsdp::plan
