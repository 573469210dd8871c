// What a run wrote to its metrics.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdp::app {

inline std::vector<nlohmann::json> read_metrics(const std::string& folder) {
  std::ifstream file(folder + "/metrics.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

inline std::vector<double> losses(const std::string& folder) {
  std::vector<double> values;
  for (const auto& line : read_metrics(folder)) {
    if (line.contains("loss")) values.push_back(line["loss"]);
  }
  return values;
}

// Nats per byte of held-out text, at the run's end.
inline double heldout(const std::string& folder) {
  return read_metrics(folder).back().at("heldout").at("nats_per_byte");
}

}  // namespace fsdp::app
