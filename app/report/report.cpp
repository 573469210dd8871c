// `fsdp report`: runs as one page of HTML.
#include <chrono>
#include <cstdio>
#include <thread>

#include "app/command_line.h"
#include "fsdp/base/error.h"
#include "io/base/atomic_file.h"
#include "report/chart.h"
#include "report/page.h"
#include "report/summary.h"
#include "train/base/terminal_text.h"
#include "train/config/config_file.h"

namespace fsdp::app {
namespace {

constexpr const char* kReportHelp =
    "Draws trainings, finished or going on, as one page of HTML that needs nothing else: losses of several runs "
    "beside\n"
    "each other, throughput, MFU, memory, where a step goes, what happened, how the settings differ, samples.\n"
    "RUN: the output.folder of a training; at most 8.";

struct ReportOptions {
  std::vector<std::string> folders;
  std::string out = "report.html";
  bool live = false;
  int every_seconds = 5;
};

std::vector<report::RunRecord> read_runs(const ReportOptions& options) {
  std::vector<report::RunRecord> runs;
  for (const std::string& folder : options.folders) runs.push_back(report::read_run(folder));
  report::name_apart(runs);
  return runs;
}

std::string now_text() {
  return report::moment_text(
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
}

enum class Refresh { kOn, kOff };

void write_report(const std::vector<report::RunRecord>& runs, const ReportOptions& options, Refresh refresh) {
  report::PageOptions page;
  page.written = now_text();
  page.version = "fsdp " FSDP_VERSION;
  page.command = "fsdp report";
  for (const std::string& folder : options.folders) page.command += " " + folder;
  page.defaults = report::read_settings(train::config_to_toml({}));
  if (refresh == Refresh::kOn) page.refresh_seconds = options.every_seconds;
  io::write_file_atomically(options.out, report::write_page(runs, page));
}

// A run that has not begun may do so; one whose files grow goes on, even where its lock cannot be seen.
bool goes_on(const std::vector<report::RunRecord>& runs, const std::vector<report::RunRecord>& before) {
  for (size_t i = 0; i < runs.size(); ++i) {
    using enum report::RunState;
    if (runs[i].state == kRunning || runs[i].state == kEmpty) return true;
    const bool has_said_so = runs[i].state == kFinished || runs[i].state == kStopped || runs[i].state == kFailed;
    if (!has_said_so && !before.empty() && runs[i].ledger.size() != before[i].ledger.size()) return true;
  }
  return false;
}

void follow(const ReportOptions& options) {
  std::vector<report::RunRecord> before;
  for (;;) {
    std::vector<report::RunRecord> runs = read_runs(options);
    const bool ends = !goes_on(runs, before);
    write_report(runs, options, ends ? Refresh::kOff : Refresh::kOn);
    if (ends) return;
    if (before.empty()) {
      std::printf("%s is new every %d s until the runs end\n", train::for_terminal(options.out).c_str(),
                  options.every_seconds);
      std::fflush(stdout);
    }
    before = std::move(runs);
    std::this_thread::sleep_for(std::chrono::seconds(options.every_seconds));
  }
}

void tell(const std::vector<report::RunRecord>& runs, const ReportOptions& options) {
  for (const report::RunRecord& run : runs) {
    std::printf("%s: %s, %s steps\n", train::for_terminal(run.name).c_str(), report::describe(run.state).text,
                report::with_commas(static_cast<double>(report::summarize(run).steps_done)).c_str());
    for (const std::string& note : run.notes) std::printf("  note: %s\n", train::for_terminal(note).c_str());
  }
  std::printf("wrote %s\n", train::for_terminal(options.out).c_str());
}

}  // namespace

int run_report(const Arguments& arguments) {
  ReportOptions options;
  CLI::App parser(kReportHelp, "fsdp report");
  parser.add_option("RUN", options.folders, "folders of runs")->required();
  parser.add_option(kOutput, options.out, "the page; default report.html");
  parser.add_flag("--live", options.live, "write it anew every few seconds until the runs end; the browser follows");
  parser.add_option("--every", options.every_seconds, "with --live: seconds between two pages; default 5")
      ->check(CLI::Range(1, 3600));
  if (parse(parser, arguments) == Parsed::kHelpShown) return 0;
  if (options.folders.size() > report::kMostRuns) {
    throw Error(ErrorCode::kUsage, "[report] got " + std::to_string(options.folders.size()) +
                                       " runs, expected at most " + std::to_string(report::kMostRuns) +
                                       ". Write several reports.");
  }
  if (options.live) follow(options);
  const std::vector<report::RunRecord> runs = read_runs(options);
  write_report(runs, options, Refresh::kOff);
  tell(runs, options);
  return 0;
}

}  // namespace fsdp::app
