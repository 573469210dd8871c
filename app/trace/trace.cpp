// `fsdp trace`: one recorded step of a run as a picture, and what was waited for.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "app/command_line.h"
#include "fsdp/base/error.h"
#include "io/base/atomic_file.h"
#include "report/trace/step_picture.h"
#include "report/trace/trace_file.h"
#include "train/base/terminal_text.h"

namespace fsdp::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTraceHelp =
    "Draws one step that a run recorded (train.profile_steps=20-22): what each rank's program did, gathers, "
    "reductions\n"
    "and waits, and prints what each waited longest for. RUN: the output.folder, or a trace.json.\n"
    "ui.perfetto.dev and chrome://tracing open trace.json too.";

constexpr size_t kMostRanksDrawn = 4;

struct TraceOptions {
  std::string run;
  std::string out;
  int64_t step = 0;
  int rank = -1;
};

std::vector<report::RankTrace> chosen_ranks(std::vector<report::RankTrace> traces, const TraceOptions& options) {
  if (options.rank < 0) {
    traces.resize(std::min(traces.size(), kMostRanksDrawn));
    return traces;
  }
  for (report::RankTrace& trace : traces)
    if (trace.rank == options.rank) return {std::move(trace)};
  throw Error(ErrorCode::kUsage, "[trace] rank: got " + std::to_string(options.rank) + ", expected one of the " +
                                     std::to_string(traces.size()) + " ranks from " +
                                     std::to_string(traces.front().rank) + " to " + std::to_string(traces.back().rank) +
                                     ". Choose another --rank.");
}

// The last step where none is named: the first ones learn.
int64_t chosen_step(const report::RankTrace& trace, int64_t asked) {
  if (asked > 0) return asked;
  const std::vector<int64_t> steps = report::steps_of(trace);
  return steps.empty() ? 0 : steps.back();
}

}  // namespace

int run_trace(const Arguments& arguments) {
  TraceOptions options;
  CLI::App parser(kTraceHelp, "fsdp trace");
  parser.add_option("RUN", options.run, "folder of a run, or its trace.json")->required();
  parser.add_option("--step", options.step, "which of the recorded steps; default: the last")
      ->check(CLI::PositiveNumber);
  parser.add_option("--rank", options.rank, "one rank; default: the first four")->check(CLI::NonNegativeNumber);
  parser.add_option(kOutput, options.out, "the picture; default: step.svg beside trace.json");
  if (parse(parser, arguments) == Parsed::kHelpShown) return 0;
  std::error_code ignored;
  const fs::path file =
      fs::is_directory(options.run, ignored) ? fs::path(options.run) / "trace.json" : fs::path(options.run);
  const fs::path out = options.out.empty() ? file.parent_path() / "step.svg" : fs::path(options.out);
  const std::vector<report::RankTrace> traces = chosen_ranks(report::read_trace(file), options);
  const int64_t step = chosen_step(traces.front(), options.step);
  std::vector<report::TracedStep> steps;
  for (const report::RankTrace& trace : traces) steps.push_back({&trace, report::split_step(trace, step)});
  const std::string title =
      "Step " + std::to_string(step) + " of " + fs::absolute(file, ignored).parent_path().filename().string();
  io::write_file_atomically(out, report::draw_step(steps, title));
  for (const report::TracedStep& traced : steps)
    std::fputs(train::for_terminal(report::to_text(traced.split, traced.trace->rank)).c_str(), stdout);
  std::printf("wrote %s\n", train::for_terminal(out.string()).c_str());
  return 0;
}

}  // namespace fsdp::app
