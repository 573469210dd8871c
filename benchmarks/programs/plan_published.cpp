// Predicts published training runs and prints the errors; docs/plan_time.md explains the tables.
//
//   plan_published            every run
//   plan_published --fit      fits the four shares to the runs on 8 GPUs, and prints them
//   plan_published --explain "7b, 2048 tokens, 8 h100" --svg step.svg --trace step.json     where the time goes
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/published_runs.h"
#include "plan/time/chrome_trace.h"
#include "plan/time/step_time.h"
#include "plan/time/timeline_picture.h"

namespace fsdp::benchmarks::plan_published_program {
namespace {

using plan::time::Shares;

double relative_error(const PublishedRun& run) {
  return plan::time::predict(decoder_work(run.shape, run.setup), run.hardware).step_ms / run.step_ms() - 1;
}

// Of the runs that may be fitted to.
double mean_fit_error(const Shares& shares) {
  double sum = 0;
  int count = 0;
  for (const PublishedRun& run : published_runs(shares)) {
    if (run.role != RunRole::kFit) continue;
    sum += std::abs(relative_error(run));
    ++count;
  }
  return sum / count;
}

// One share after the other, in steps that become smaller.
Shares fit() {
  Shares best{.products = 0.8, .attention = 0.8, .memory = 0.8, .slowdown = 0.2};
  double least = mean_fit_error(best);
  const std::array<double Shares::*, 4> fields = {&Shares::products, &Shares::attention, &Shares::memory,
                                                  &Shares::slowdown};
  for (double step = 0.08; step > 0.002;) {
    bool improved = false;
    for (double Shares::*field : fields) {
      for (const double change : {-step, step}) {
        Shares tried = best;
        tried.*field += change;
        const double top = field == &Shares::slowdown ? 2 : field == &Shares::attention ? 1.3 : 1.0;
        if (tried.*field < 0.01 || tried.*field > top) continue;
        const double error = mean_fit_error(tried);
        if (error >= least) continue;
        least = error;
        best = tried;
        improved = true;
      }
    }
    if (!improved) step /= 2;
  }
  return best;
}

struct Mean {
  double absolute = 0, sum = 0, worst = 0;
  int count = 0;
  void add(double error) {
    absolute += std::abs(error);
    sum += error;
    if (std::abs(error) > std::abs(worst)) worst = error;
    ++count;
  }
  void print(const char* what) const {
    if (count > 0)
      std::printf("%s: %d runs, mean absolute error %.2f%%, mean error %+.2f%%, worst %+.2f%%\n", what, count,
                  100 * absolute / count, 100 * sum / count, 100 * worst);
  }
};

void print_table(const Shares& shares) {
  Mean fitted, predicted, predicted_a100;
  std::printf(
      "| source | run | published, tok/s | predicted | step, ms | error | role |\n|---|---|---|---|---|---|---|\n");
  for (const PublishedRun& run : published_runs(shares)) {
    const double error = relative_error(run);
    const bool is_fit = run.role == RunRole::kFit;
    std::printf("| %s | %s | %.0f | %.0f | %.1f | %+.2f%% | %s |\n", run.source.c_str(), run.name.c_str(),
                run.tokens_per_second, run.tokens_per_second / (1 + error), run.step_ms(), 100 * error,
                is_fit ? "fitted" : "predicted");
    const bool is_a100 = run.hardware.name == "a100-80gb";
    (is_fit ? fitted : is_a100 ? predicted_a100 : predicted).add(error);
  }
  fitted.print("fitted, 8 H100");
  predicted.print("predicted, H100");
  predicted_a100.print("predicted, A100");
}

// Files are of the last run.
void explain(const std::string& part, const std::string& svg_path, const std::string& trace_path) {
  for (const PublishedRun& run : published_runs()) {
    if (run.name.find(part) == std::string::npos) continue;
    const plan::time::StepWork work = decoder_work(run.shape, run.setup);
    const plan::time::StepTime time = plan::time::predict(work, run.hardware);
    std::printf("%s, %s: published %.2f ms\n%s\n", run.source.c_str(), run.name.c_str(), run.step_ms(),
                to_text(time).c_str());
    if (!svg_path.empty()) std::ofstream(svg_path) << to_svg(time, work, run.source + ", " + run.name);
    if (!trace_path.empty()) std::ofstream(trace_path) << to_chrome_trace(time.timeline, work);
  }
}

}  // namespace

int run(int argc, char** argv) {
  CLI::App app("Predicts published training runs");
  bool fits = false;
  std::string part, svg_path, trace_path;
  app.add_flag("--fit", fits, "fit the four shares to the runs on 8 GPUs first");
  app.add_option("--explain", part, "where the time goes, of runs whose name has this");
  app.add_option("--svg", svg_path, "with --explain: write the step's picture there");
  app.add_option("--trace", trace_path, "with --explain: write the step's timeline there, for ui.perfetto.dev");
  parse_or_exit(app, argc, argv);
  if (!part.empty()) {
    explain(part, svg_path, trace_path);
    return 0;
  }
  const Shares shares = fits ? fit() : Shares();
  if (fits)
    std::printf("products %.4f, attention %.4f, memory %.4f, slowdown %.4f\n", shares.products, shares.attention,
                shares.memory, shares.slowdown);
  print_table(shares);
  return 0;
}

}  // namespace fsdp::benchmarks::plan_published_program
