#include "train/logs/named_numbers.h"

#include <nlohmann/json.hpp>

namespace fsdp::train {
namespace {

void collect_numbers(const nlohmann::ordered_json& object, std::vector<std::string>& path,
                     std::vector<NamedNumber>& numbers) {
  for (const auto& [key, value] : object.items()) {
    path.push_back(key);
    if (value.is_object()) collect_numbers(value, path, numbers);
    if (value.is_number()) numbers.push_back({path, value.get<double>()});
    path.pop_back();
  }
}

}  // namespace

StepNumbers named_numbers(const std::string& json) {
  nlohmann::ordered_json object = nlohmann::ordered_json::parse(json);
  StepNumbers found;
  found.step = object.at("step").get<long long>();
  object.erase("step");
  object.erase("schema");
  std::vector<std::string> path;
  collect_numbers(object, path, found.numbers);
  return found;
}

}  // namespace fsdp::train
