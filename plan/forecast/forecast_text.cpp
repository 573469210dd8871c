#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

#include "fsdp/base/units.h"
#include "plan/forecast/forecast.h"

namespace fsdp::plan {
namespace {

using time::UnitTime;

template <class... Values>
std::string formatted(const char* format, Values... values) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

std::string count_text(double count) { return format_count(static_cast<int64_t>(count)); }

// "14,305,115", "9", "2.50": fractions below ten only.
std::string with_commas(double value) {
  if (value < 10 && value != std::floor(value)) return formatted("%.2f", value);
  std::string digits = formatted("%.0f", value);
  for (size_t from_end = 3; from_end < digits.size(); from_end += 4) digits.insert(digits.size() - from_end, 1, ',');
  return digits;
}

// Milliseconds, or seconds in steps of many: one unit for a whole table.
class Clock {
 public:
  explicit Clock(double step_ms) : in_seconds_(step_ms >= 1e4) {}
  std::string text(double ms) const {
    return formatted(in_seconds_ ? "%.3f s" : "%.2f ms", in_seconds_ ? 1e-3 * ms : ms);
  }
  std::string row(const char* what, double ms, const std::string& meaning) const {
    return formatted("  %-24s%12s", what, text(ms).c_str()) + (meaning.empty() ? "" : "  " + meaning) + "\n";
  }

 private:
  bool in_seconds_;
};

// The units that computing stands still for longest: "WHAT: root 12.10 ms, model.layers.0 3.00 ms, 2 others"; nothing
// if there are none.
std::string worst_units_text(const char* what, const Forecast& forecast, const Clock& clock,
                             double UnitTime::*exposed_ms) {
  std::vector<UnitTime> units = forecast.step.units;
  std::erase_if(units, [&](const UnitTime& unit) { return unit.*exposed_ms < 0.005; });
  std::stable_sort(units.begin(), units.end(),
                   [&](const UnitTime& a, const UnitTime& b) { return a.*exposed_ms > b.*exposed_ms; });
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, units.size()); ++i)
    text += (i == 0 ? std::string(what) + ": " : ", ") + units[i].unit + " " + clock.text(units[i].*exposed_ms);
  if (units.size() > kShown) text += ", " + std::to_string(units.size() - kShown) + " others";
  return text;
}

nlohmann::json unit_json(const UnitTime& unit) {
  return {{"unit", unit.unit},
          {"compute_ms", unit.compute_ms},
          {"gather_ms", unit.gather_ms},
          {"reduce_ms", unit.reduce_ms},
          {"exposed_gather_ms", unit.exposed_gather_ms},
          {"exposed_reduce_ms", unit.exposed_reduce_ms}};
}

}  // namespace

std::string to_text(const PathShares& path) {
  const double percent = 100 / std::max(path.sum(), 1e-9);
  std::string text =
      formatted("compute %.1f %%, transfers %.1f %% (gathers %.1f %%, reductions %.1f %%), optimizer %.1f %%",
                percent * path.compute, percent * (path.gather + path.reduce), percent * path.gather,
                percent * path.reduce, percent * path.optimizer);
  if (path.stages > 0) text += formatted(", other stages %.1f %%", percent * path.stages);
  if (path.other > 0) text += formatted(", agreement %.1f %%", percent * path.other);
  return text;
}

std::string to_text(const RunLength& length, double goodput) {
  const double hours = length.hours / goodput;
  return count_text(length.tokens) + " tokens: " + with_commas(length.steps) + " steps in " +
         with_commas(length.hours) + " h; with failures and checkpoints " + with_commas(hours) + " h (" +
         with_commas(hours / 24) + " days), " + count_text(length.rank_hours / goodput) + " rank hours\n";
}

nlohmann::json to_json(const RunLength& length, double goodput) {
  return {{"tokens", length.tokens},
          {"steps", length.steps},
          {"hours", length.hours},
          {"rank_hours", length.rank_hours},
          {"hours_with_failures", length.hours / goodput},
          {"rank_hours_with_failures", length.rank_hours / goodput}};
}

std::string to_text(const Forecast& forecast, HardwareOrigin origin) {
  const time::StepTime& step = forecast.step;
  std::string text = "time of a step on " + forecast.hardware.name;
  if (origin == HardwareOrigin::kAssumed) text += " (assumed: --hardware says what it is)";
  const Clock clock(step.step_ms);
  const double tokens = forecast.tokens_per_second();
  std::string speed =
      count_text(tokens / static_cast<double>(forecast.world)) + " tok/s of a rank, " + count_text(tokens) + " of all";
  if (step.mfu > 0) speed += formatted("; MFU %.1f %%", 100 * step.mfu);
  const std::string beside =
      step.slowdown_ms < 0.005 ? "" : clock.text(step.slowdown_ms) + " of it because transfers run beside it";
  text += "\n" + clock.row("step", step.step_ms, speed);
  text += clock.row("forward and backward", step.compute_ms, beside);
  text += clock.row("exposed gathers", step.exposed_gather_ms,
                    worst_units_text("computing waits for weights", forecast, clock, &UnitTime::exposed_gather_ms));
  text += clock.row(
      "exposed reductions", step.exposed_reduce_ms,
      worst_units_text("computing waits for sums of gradients", forecast, clock, &UnitTime::exposed_reduce_ms));
  if (step.activation_ms > 0)
    text += clock.row("exposed activations", step.activation_ms,
                      "part of forward and backward: layers wait for tp, cp, ep");
  if (forecast.stage_wait_ms > 0)
    text += clock.row("other stages", forecast.stage_wait_ms,
                      formatted("stage %ld, the slowest, waits for them: %.1f %% of the step",
                                static_cast<long>(forecast.stage), 100 * forecast.stage_wait_ms / step.step_ms));
  text += clock.row("optimizer", step.optimizer_ms, "");
  if (step.other_ms > 0) text += clock.row("agreement", step.other_ms, "ranks compare what they did");
  return text + "  limited by " + forecast.limiting() + ": the critical path is " + to_text(forecast.path) + "\n";
}

nlohmann::json to_json(const Forecast& forecast, HardwareOrigin origin) {
  const time::StepTime& step = forecast.step;
  nlohmann::json units = nlohmann::json::array();
  for (const UnitTime& unit : step.units) units.push_back(unit_json(unit));
  const double tokens = forecast.tokens_per_second();
  return {{"hardware", forecast.hardware.name},
          {"hardware_is_assumed", origin == HardwareOrigin::kAssumed},
          {"step_ms", step.step_ms},
          {"tokens_per_second", tokens},
          {"tokens_per_second_of_a_rank", tokens / static_cast<double>(forecast.world)},
          {"mfu", step.mfu},
          {"compute_ms", step.compute_ms},
          {"slowdown_ms", step.slowdown_ms},
          {"exposed_activations_ms", step.activation_ms},
          {"exposed_gather_ms", step.exposed_gather_ms},
          {"exposed_reduce_ms", step.exposed_reduce_ms},
          {"stage_wait_ms", forecast.stage_wait_ms},
          {"stage", forecast.stage},
          {"optimizer_ms", step.optimizer_ms},
          {"agreement_ms", step.other_ms},
          {"gather_ms", step.gather_ms},
          {"reduce_ms", step.reduce_ms},
          {"critical_path",
           {{"compute_ms", forecast.path.compute},
            {"gather_ms", forecast.path.gather},
            {"reduce_ms", forecast.path.reduce},
            {"optimizer_ms", forecast.path.optimizer},
            {"stages_ms", forecast.path.stages},
            {"agreement_ms", forecast.path.other},
            {"limiting", forecast.limiting()}}},
          {"units", units}};
}

}  // namespace fsdp::plan
