#include "app/bench/strategy_run.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "app/child/child_run.h"
#include "fsdp/base/error.h"
#include "report/run_files.h"
#include "report/summary.h"
#include "train/config/config_file.h"

namespace fsdp::app {
namespace {

namespace fs = std::filesystem;

constexpr double kNoFigure = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kFirstSteps = 3;  // which find their memory and learn the order of units

// The run's own steps and output; nothing that is not training.
Arguments training_words(const StrategyQuestion& question, const std::string& strategy, const fs::path& output) {
  const int64_t warmup = train::load_config(question.file, question.overrides).train.warmup_steps;
  Arguments words{"launch", "--nproc", std::to_string(question.ranks), "--no-prefix", "--", "train"};
  if (!question.file.empty()) words.push_back(question.file);
  words.insert(words.end(), question.overrides.begin(), question.overrides.end());
  for (const std::string& key :
       {"shard.strategy=" + strategy, "output.folder=" + output.string(),
        "train.steps=" + std::to_string(question.steps),
        "train.warmup_steps=" + std::to_string(std::min<int64_t>(warmup, question.steps / 2)),
        std::string("train.warmup_tokens=0"), std::string("train.max_tokens=0"), std::string("train.fit_minutes=0"),
        std::string("train.max_minutes=0"), std::string("train.log_every=1"), std::string("train.eval_every=0"),
        std::string("train.final_eval_batches=1"), std::string("checkpoint.every_steps=0"),
        std::string("checkpoint.every_minutes=0"), std::string("checkpoint.resume=never"),
        std::string("train.on_spike=off"), std::string("train.on_nonfinite=stop"),  // nothing to go back to
        std::string("sample.every_steps=0"), std::string("output.overwrite=replace")})
    words.push_back("--" + key);
  return words;
}

// Of the steps after the first ones.
double median_of(const std::vector<report::StepFigures>& steps, double report::StepFigures::*member) {
  std::vector<double> values;
  for (size_t i = steps.size() > 2 * kFirstSteps ? kFirstSteps : 0; i < steps.size(); ++i)
    if (std::isfinite(steps[i].*member)) values.push_back(steps[i].*member);
  return report::middle_of(std::move(values));
}

void take_figures(const report::RunRecord& record, StrategyRun& run) {
  using report::StepFigures;
  run.step_ms = median_of(record.steps, &StepFigures::step_ms);
  run.tokens_per_s = median_of(record.steps, &StepFigures::tokens_per_s);
  run.mfu = median_of(record.steps, &StepFigures::mfu);
  run.received = median_of(record.steps, &StepFigures::received);
  run.peak_bytes = record.steps.back().peak;
  run.held_bytes = 0;
  for (const StepFigures& step : record.steps)
    run.held_bytes = std::max(run.held_bytes, step.params + step.grads + step.optimizer + step.comm);
  for (const report::LedgerFigures& step : record.ledger) run.losses.push_back(step.loss);
}

// From `fsdp plan --json`; a plan that does not come about leaves its figures out.
void take_plan(const StrategyQuestion& question, const fs::path& scratch, StrategyRun& run) {
  const fs::path answer = scratch / "plan.json";
  Arguments words{"plan"};
  if (!question.file.empty()) words.push_back(question.file);
  words.insert(words.end(), question.overrides.begin(), question.overrides.end());
  const std::string ranks = std::to_string(question.ranks);
  words.insert(words.end(), {"--shard.strategy=" + run.name, "--world", ranks, "--node", ranks, "--json"});
  const char* transport = std::getenv("FSDP_TRANSPORT");
  if (transport != nullptr && std::string(transport) == "gloo") words.insert(words.end(), {"--transport", "gloo"});
  if (run_again(words, {}, answer) != 0) return;
  std::ifstream file(answer);
  const auto plan = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!plan.is_object()) return;
  run.planned_received = plan.at("/traffic/gather_bytes"_json_pointer).get<double>() +
                         plan.at("/traffic/reduce_bytes"_json_pointer).get<double>();
  run.planned_held = plan.at("/memory/at_rest"_json_pointer).get<double>() +
                     plan.at("/memory/buffers_held"_json_pointer).get<double>();
}

}  // namespace

StrategyRun run_strategy(const StrategyQuestion& question, const std::string& name) {
  const ScratchFolder scratch;
  const fs::path output = scratch.path() / "run", log = scratch.path() / "log";
  StrategyRun run;
  run.name = name;
  for (double* figure : {&run.step_ms, &run.tokens_per_s, &run.mfu, &run.held_bytes, &run.planned_held, &run.peak_bytes,
                         &run.received, &run.planned_received})
    *figure = kNoFigure;
  const int code = run_again(training_words(question, name, output), {}, log);
  if (code != 0) {
    run.failure = "exit code " + std::to_string(code) + ": " + last_line(log);
    return run;
  }
  const report::RunRecord record = report::read_run(output);
  if (record.steps.empty()) {
    run.failure = "no step was logged";
    return run;
  }
  take_figures(record, run);
  take_plan(question, scratch.path(), run);
  return run;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return a.empty() || b.empty() ? kNoFigure : most;
}

}  // namespace fsdp::app
