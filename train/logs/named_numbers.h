#pragma once

#include <string>
#include <utility>
#include <vector>

namespace fsdp::train {

// The numbers in an object of metrics.jsonl, under the names of their keys from the outside in: {"memory", "params"}.
// Without "step" and "schema", which say where and how; what is null or text is left out.
struct NamedNumber {
  std::vector<std::string> path;
  double value = 0;
};
struct StepNumbers {
  long long step = 0;
  std::vector<NamedNumber> numbers;
};
StepNumbers named_numbers(const std::string& json);

}  // namespace fsdp::train
