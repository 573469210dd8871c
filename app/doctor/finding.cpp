#include "app/doctor/finding.h"

#include <algorithm>

namespace fsdp::app {
namespace {

std::string title(const Finding& finding) {
  return finding.rank == 0 ? finding.what : finding.what + " (rank " + std::to_string(finding.rank) + ")";
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

std::string closing_line(const Findings& findings) {
  const auto count = [&](Health verdict) {
    return std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.verdict == verdict; });
  };
  const auto broken = count(Health::kBroken), slow = count(Health::kSlow);
  const auto things = [](auto number, const char* state) {
    return std::to_string(number) + (number == 1 ? " thing is " : " things are ") + state;
  };
  if (broken > 0) return "Training would not work here: " + things(broken, "broken") + ".\n";
  if (slow > 0) return "Training would work here; " + things(slow, "slow or risky") + ".\n";
  return "Training would work here.\n";
}

}  // namespace

const char* name(Health verdict) {
  return verdict == Health::kOk ? "ok" : verdict == Health::kSlow ? "slow" : "broken";
}

nlohmann::ordered_json to_json(const Finding& finding) {
  return {{"what", finding.what},
          {"value", finding.value},
          {"verdict", name(finding.verdict)},
          {"advice", finding.advice},
          {"exit_code", finding.verdict == Health::kBroken ? static_cast<int>(finding.failure) : 0},
          {"rank", finding.rank}};
}

Finding parse_finding(const nlohmann::json& json) {
  Finding finding{json.at("what"), json.at("value"), Health::kOk, json.at("advice")};
  for (const Health verdict : {Health::kSlow, Health::kBroken})
    if (json.at("verdict") == name(verdict)) finding.verdict = verdict;
  finding.failure = static_cast<ErrorCode>(json.at("exit_code").get<int>());
  finding.rank = json.at("rank");
  return finding;
}

Findings merged(const std::vector<Findings>& of_ranks) {
  Findings all;
  for (const Finding& first : of_ranks.front()) {
    all.push_back(first);
    for (size_t rank = 1; rank < of_ranks.size(); ++rank)
      for (const Finding& other : of_ranks[rank])
        if (other.what == first.what && other.verdict > first.verdict) all.push_back(other);
  }
  return all;
}

std::string to_text(const Findings& findings) {
  size_t widest = 0;
  for (const Finding& finding : findings) widest = std::max(widest, title(finding).size());
  std::string text;
  for (const Finding& finding : findings) {
    text += padded(name(finding.verdict), 8) + padded(title(finding), widest + 2) + finding.value + "\n";
    if (!finding.advice.empty()) text += std::string(10 + widest, ' ') + "-> " + finding.advice + "\n";
  }
  return text + closing_line(findings);
}

int exit_code_of(const Findings& findings) {
  for (const Finding& finding : findings)
    if (finding.verdict == Health::kBroken) return static_cast<int>(finding.failure);
  return 0;
}

}  // namespace fsdp::app
