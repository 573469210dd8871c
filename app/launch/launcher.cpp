#include "app/launch/launcher.h"

#include <unistd.h>

#include <utility>
#include <vector>

namespace fsdp::app {

Launcher::Launcher(LaunchOptions options) : options_(std::move(options)) { adopt_orphans(); }

int Launcher::run(const JobStore& store, Notices& notices) {
  RestartPolicy policy(options_.restarts);
  for (int number = 0;; ++number) {
    RankOutput output(options_.nproc, {.prefix = options_.prefix, .draws_status = isatty(STDOUT_FILENO) != 0});
    Attempt attempt(options_, number, store.listen(), signals_, output, notices);
    attempt.start_ranks();
    store.serve();  // not before: a rank that is a copy of this process would inherit the locks of another thread
    const AttemptEnd end = attempt.run();
    if (end.stop_signal) return report_stop(end, output);
    if (!end.culprit) return 0;
    const Verdict verdict = policy.judge({end.status, end.uptime, output.committed_step()});
    if (!verdict.restart) return report_failure(end, verdict.text, output);
    output.note(name_culprit(end) + "; " + verdict.text);
    if (const auto signal_number = signals_.wait(verdict.wait)) {
      output.note("launch: stopped by " + describe_signal(*signal_number) + " before the restart");
      return exit_code(end.status);
    }
  }
}

int Launcher::report_stop(const AttemptEnd& end, RankOutput& output) const {
  if (end.culprit) return report_failure(end, "", output);
  const std::string what = "launch: stopped by " + describe_signal(*end.stop_signal);
  if (end.num_killed > 0) {
    output.note(what + "; " + std::to_string(end.num_killed) + " of " + std::to_string(options_.nproc) +
                " ranks had to be killed");
    return 128 + *end.stop_signal;
  }
  switch (cause_of(end.status)) {
    case Cause::kNone:
      output.note(what + "; all ranks ended with code 0");
      return 0;
    case Cause::kRequest:
      output.note(what + "; the run can be resumed");
      return kResumable;
    default:
      output.note(what);
      return 128 + *end.stop_signal;
  }
}

int Launcher::report_failure(const AttemptEnd& end, const std::string& why_no_restart, RankOutput& output) const {
  const bool is_resumable = cause_of(end.status) == Cause::kRequest;
  std::vector<std::string> lines = output.last_lines(*end.culprit, RankOutput::Stream::kErr);
  if (lines.empty() && end.status.by_signal) lines = output.last_lines(*end.culprit, RankOutput::Stream::kOut);
  if (is_resumable) lines.clear();  // nothing went wrong
  output.note(name_culprit(end) + (is_resumable ? "; the run can be resumed" : "; all ranks were stopped") +
              (why_no_restart.empty() ? "" : "; " + why_no_restart) + (lines.empty() ? "" : ". Its last lines:"));
  for (const std::string& line : lines) output.note("  | " + line);
  return exit_code(end.status);
}

std::string Launcher::name_culprit(const AttemptEnd& end) const {
  return "launch: rank " + std::to_string(*end.culprit) + " of " + std::to_string(options_.nproc) + " " +
         describe(end.status);
}

}  // namespace fsdp::app
