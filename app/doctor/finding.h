#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fsdp/base/error.h"

namespace fsdp::app {

enum class Health {
  kOk,
  kSlow,    // training works, with less than the machine could give or with a risk
  kBroken,  // training would fail
};

// One thing that `fsdp doctor` looked at.
struct Finding {
  std::string what;   // "disk"
  std::string value;  // what was found, for people
  Health verdict = Health::kOk;
  std::string advice = {};                   // what to do; "" for kOk
  ErrorCode failure = ErrorCode::kInternal;  // how training would fail, for kBroken
  int rank = 0;                              // who found it
};

using Findings = std::vector<Finding>;

// "ok", "slow", "broken".
const char* name(Health verdict);

nlohmann::ordered_json to_json(const Finding& finding);
// What to_json() wrote.
Finding parse_finding(const nlohmann::json& json);

// Rank 0's, and of the others what is worse there.
Findings merged(const std::vector<Findings>& of_ranks);

// A table with a line for each, and the advice below it.
std::string to_text(const Findings& findings);

// 0 if training would work, else how it would fail first.
int exit_code_of(const Findings& findings);

}  // namespace fsdp::app
