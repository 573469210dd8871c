#include <algorithm>
#include <cmath>

#include "app/bench/strategy_run.h"
#include "report/bars.h"
#include "report/number_text.h"
#include "train/base/format.h"

namespace fsdp::app {
namespace {

using report::number_text;
using report::Unit;

// What the others' losses are compared with: the first that has some.
const std::vector<double>& reference_losses(const std::vector<StrategyRun>& runs) {
  static const std::vector<double> nothing;
  for (const StrategyRun& run : runs)
    if (!run.losses.empty()) return run.losses;
  return nothing;
}

std::string cell(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

// "9.51 MiB (plan +0.0%)".
std::string beside_plan(double value, double planned) {
  std::string text = number_text(value, Unit::kBytes);
  if (planned > 0) text += train::format_text(" (plan %+.1f%%)", 100 * (value / planned - 1));
  if (planned == 0 && value == 0) text += " (as planned)";
  return text;
}

// JSON has no NaN.
nlohmann::ordered_json figure(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

std::string question_text(const StrategyQuestion& question) {
  return train::format_text("%d ranks, %d steps each, %s", question.ranks, question.steps,
                            question.file.empty() ? "defaults" : question.file.c_str());
}

}  // namespace

std::string to_text(const std::vector<StrategyRun>& runs, const StrategyQuestion& question) {
  std::string text = question_text(question) + "\n" + "strategy   ms/step     tok/s     mfu  process peak" +
                     cell("held by rank 0", 28) + cell("received a step", 28) + "  losses differ by\n";
  for (const StrategyRun& run : runs) {
    text += run.name + std::string(8 - std::min<size_t>(8, run.name.size()), ' ');
    if (!run.failure.empty()) {
      text += "  failed: " + run.failure + "\n";
      continue;
    }
    text += cell(number_text(run.step_ms), 10) + cell(number_text(run.tokens_per_s), 10) +
            cell(number_text(run.mfu, Unit::kPercent), 8) + cell(number_text(run.peak_bytes, Unit::kBytes), 14) +
            cell(beside_plan(run.held_bytes, run.planned_held), 28) +
            cell(beside_plan(run.received, run.planned_received), 28) +
            cell(number_text(largest_difference(run.losses, reference_losses(runs))), 18) + "\n";
  }
  return text;
}

nlohmann::ordered_json to_json(const std::vector<StrategyRun>& runs, const StrategyQuestion& question) {
  nlohmann::ordered_json json{{"ranks", question.ranks}, {"steps", question.steps}};
  json["strategies"] = nlohmann::ordered_json::array();
  for (const StrategyRun& run : runs) {
    json["strategies"].push_back(
        {{"strategy", run.name},
         {"failure", run.failure},
         {"step_ms", figure(run.step_ms)},
         {"tokens_per_s", figure(run.tokens_per_s)},
         {"mfu", figure(run.mfu)},
         {"process_peak_bytes", figure(run.peak_bytes)},
         {"held_bytes", figure(run.held_bytes)},
         {"planned_held_bytes", figure(run.planned_held)},
         {"received_bytes", figure(run.received)},
         {"planned_received_bytes", figure(run.planned_received)},
         {"largest_loss_difference", figure(largest_difference(run.losses, reference_losses(runs)))},
         {"losses", run.losses}});
  }
  return json;
}

std::string to_svg(const std::vector<StrategyRun>& runs, const StrategyQuestion& question) {
  std::vector<report::BarGroup> groups{
      {"ms per step", {}}, {"held by rank 0, at most", {}}, {"received by rank 0 in a step", {}}};
  for (const StrategyRun& run : runs) {
    const bool failed = !run.failure.empty();
    groups[0].bars.push_back(
        {run.name, run.step_ms, failed ? "failed" : number_text(run.step_ms, Unit::kMilliseconds)});
    groups[1].bars.push_back({run.name, run.held_bytes, failed ? "failed" : number_text(run.held_bytes, Unit::kBytes)});
    groups[2].bars.push_back({run.name, run.received, failed ? "failed" : number_text(run.received, Unit::kBytes)});
  }
  return report::draw_bars("Strategies: " + question_text(question), groups);
}

}  // namespace fsdp::app
