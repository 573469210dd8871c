#include "report/summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace fsdp::report {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

std::vector<double> finite_values(const std::vector<StepFigures>& rows, double StepFigures::*member) {
  std::vector<double> values;
  for (const StepFigures& row : rows)
    if (std::isfinite(row.*member)) values.push_back(row.*member);
  return values;
}

// The first steps find their memory, and are left out where there are others.
double median(std::vector<double> values) {
  if (values.size() > 3) values.erase(values.begin());
  return middle_of(std::move(values));
}

double mean(std::vector<double> values) {
  if (values.empty()) return kNothing;
  if (values.size() > 3) values.erase(values.begin());
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double last_loss(const RunRecord& run) {
  std::vector<double> losses;
  for (const LedgerFigures& row : run.ledger)
    if (std::isfinite(row.loss)) losses.push_back(row.loss);
  if (losses.empty()) losses = finite_values(run.steps, &StepFigures::loss);
  if (losses.empty()) return kNothing;
  const size_t count = std::clamp<size_t>(losses.size() / 10, 1, 20);
  double sum = 0;
  for (size_t i = losses.size() - count; i < losses.size(); ++i) sum += losses[i];
  return sum / static_cast<double>(count);
}

void add_events(const RunRecord& run, Summary& summary) {
  double first = kNothing, last = kNothing;
  for (const Event& event : run.events) {
    if (std::isfinite(event.time)) {
      if (!std::isfinite(first)) first = event.time;
      last = event.time;
    }
    if (event.kind == "started") {
      summary.steps_planned = event.steps;
      summary.ranks = event.ranks;
      summary.parameters = event.parameters;
    }
    summary.resumes += event.kind == "resumed" ? 1 : 0;
    summary.rollbacks += event.kind == "rolled_back" ? 1 : 0;
  }
  summary.resumes -= std::min(summary.resumes, summary.rollbacks);  // going back is told as both
  summary.seconds = last - first;
}

}  // namespace

double middle_of(std::vector<double> values) {
  if (values.empty()) return kNothing;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

Summary summarize(const RunRecord& run) {
  Summary summary;
  summary.steps_planned = summary.ranks = summary.parameters = kNothing;
  add_events(run, summary);
  if (!run.steps.empty()) summary.steps_done = run.steps.back().step;
  if (!run.ledger.empty()) summary.steps_done = std::max(summary.steps_done, run.ledger.back().step);
  summary.loss = last_loss(run);
  summary.heldout = summary.best_heldout = kNothing;
  for (const HeldoutFigures& row : run.heldout) {
    if (!std::isfinite(row.loss)) continue;
    summary.heldout = row.loss;
    summary.best_heldout = std::isfinite(summary.best_heldout) ? std::min(summary.best_heldout, row.loss) : row.loss;
  }
  summary.tokens = run.steps.empty() ? kNothing : run.steps.back().tokens;
  summary.tokens_per_s = median(finite_values(run.steps, &StepFigures::tokens_per_s));
  summary.mfu = median(finite_values(run.steps, &StepFigures::mfu));
  summary.step_ms = mean(finite_values(run.steps, &StepFigures::step_ms));
  summary.data_ms = mean(finite_values(run.steps, &StepFigures::data_ms));
  summary.exposed_ms = mean(finite_values(run.steps, &StepFigures::exposed_ms));
  const std::vector<double> peaks = finite_values(run.steps, &StepFigures::peak);
  summary.peak_bytes = peaks.empty() ? kNothing : *std::max_element(peaks.begin(), peaks.end());
  for (const LedgerFigures& row : run.ledger) summary.skips += row.skipped ? 1 : 0;
  return summary;
}

StateText describe(RunState state) {
  switch (state) {
    case RunState::kEmpty:
      return {"no steps yet", "calm"};
    case RunState::kRunning:
      return {"running", "good"};
    case RunState::kFinished:
      return {"finished", "calm"};
    case RunState::kStopped:
      return {"stopped, can go on", "odd"};
    case RunState::kFailed:
      return {"failed", "bad"};
    case RunState::kBroken:
      return {"broke off", "bad"};
    case RunState::kUnknown:
      return {"not finished", "odd"};
  }
  return {"", "calm"};
}

std::vector<Difference> differences(const std::vector<const std::vector<Setting>*>& runs) {
  std::vector<std::string> keys;  // in the order of the first run that has them
  std::map<std::string, std::vector<std::string>> values;
  for (size_t run = 0; run < runs.size(); ++run) {
    for (const Setting& setting : *runs[run]) {
      const auto [found, is_new] = values.try_emplace(setting.key, runs.size());
      if (is_new) keys.push_back(setting.key);
      found->second[run] = setting.value;
    }
  }
  std::vector<Difference> found;
  for (const std::string& key : keys) {
    const std::vector<std::string>& of_key = values[key];
    const bool differs =
        std::any_of(of_key.begin(), of_key.end(), [&](const auto& value) { return value != of_key[0]; });
    if (differs && key != "output.folder") found.push_back({key, of_key});
  }
  return found;
}

}  // namespace fsdp::report
