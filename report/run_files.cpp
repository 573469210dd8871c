#include "report/run_files.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "fsdp/base/error.h"
#include "report/json_lines.h"
#include "report/lock_state.h"

namespace fsdp::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kLedger = "ledger.jsonl";
constexpr const char* kEvents = "events.jsonl";
constexpr const char* kSamples = "samples.jsonl";
constexpr const char* kConfig = "config.toml";

// The number whose bits the 16 hexadecimal digits are.
double from_bits(const std::string& digits) {
  uint64_t bits = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits, 16);
  return error == std::errc() && end == digits.data() + digits.size() && digits.size() == 16
             ? std::bit_cast<double>(bits)
             : kNone;
}

StepFigures step_figures(const json& line, int64_t step) {
  StepFigures row;
  row.step = step;
  row.loss = figure(line, "loss");
  row.grad_norm = figure(line, "grad_norm");
  row.lr = figure(line, "lr");
  row.step_ms = figure(line, "step_ms");
  row.data_ms = figure(line, "data_ms");
  row.exposed_ms = figure(line, "comm", "exposed_ms");  // of several steps yet
  row.tokens = figure(line, "tokens");
  row.tokens_per_s = figure(line, "tokens_per_s");
  row.mfu = figure(line, "mfu");
  row.resident = figure(line, "memory", "resident_bytes");
  row.peak = figure(line, "memory", "peak_bytes");
  row.params = figure(line, "memory", "params");
  row.grads = figure(line, "memory", "grads");
  row.optimizer = figure(line, "memory", "optimizer");
  row.comm = figure(line, "memory", "comm");
  row.received = figure(line, "comm", "bytes");  // of several steps yet
  row.device_reserved = figure(line, "device", "reserved_bytes");
  return row;
}

// Sorted, and of several rows of one step the last: that which counts after a run went back.
template <class Row>
void put_in_order(std::vector<Row>& rows) {
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.step < b.step; });
  std::vector<Row> kept;
  for (Row& row : rows) {
    if (!kept.empty() && kept.back().step == row.step) kept.pop_back();
    kept.push_back(std::move(row));
  }
  rows = std::move(kept);
}

void read_metrics(const fs::path& folder, RunRecord& run) {
  for_each_object(folder / kMetrics, run.notes, [&](const json& line, int64_t step) {
    if (line.contains("heldout")) {
      run.heldout.push_back({step, figure(line, "heldout", "loss"), figure(line, "heldout", "perplexity"),
                             figure(line, "heldout", "bits_per_byte")});
    } else {
      run.steps.push_back(step_figures(line, step));
    }
  });
  put_in_order(run.steps);
  put_in_order(run.heldout);
}

void read_ledger(const fs::path& folder, RunRecord& run) {
  for_each_object(folder / kLedger, run.notes, [&](const json& line, int64_t step) {
    const auto skipped = line.find("skipped");
    run.ledger.push_back({step, from_bits(text_of(line, "loss")), from_bits(text_of(line, "grad_norm")),
                          skipped != line.end() && skipped->is_boolean() && skipped->get<bool>()});
  });
  put_in_order(run.ledger);
}

void read_events(const fs::path& folder, RunRecord& run) {
  for_each_object(folder / kEvents, run.notes, [&](const json& line, int64_t step) {
    run.events.push_back({figure(line, "time"), text_of(line, "event"), step, text_of(line, "text"),
                          figure(line, "steps"), figure(line, "ranks"), figure(line, "parameters")});
  });
}

void read_samples(const fs::path& folder, RunRecord& run) {
  for_each_object(folder / kSamples, run.notes, [&](const json& line, int64_t step) {
    run.samples.push_back({step, text_of(line, "prompt"), text_of(line, "text")});
  });
  std::stable_sort(run.samples.begin(), run.samples.end(),
                   [](const SampleText& a, const SampleText& b) { return a.step < b.step; });
}

// metrics.jsonl has what was waited for and received since the line before, or since the process began.
void divide_by_steps(RunRecord& run) {
  int64_t before = 0;
  for (StepFigures& row : run.steps) {
    for (const Event& event : run.events)
      if (event.kind == "resumed" && event.step < row.step) before = std::max(before, event.step);
    const auto steps = static_cast<double>(std::max<int64_t>(1, row.step - before));
    row.exposed_ms /= steps;
    row.received /= steps;
    before = row.step;
  }
}

RunState state_of(const fs::path& folder, const RunRecord& run) {
  if (is_locked(folder)) return RunState::kRunning;
  const std::string last = run.events.empty() ? "" : run.events.back().kind;
  if (last == "ended") return RunState::kFinished;
  if (last == "stopped") return RunState::kStopped;
  if (last == "failed") return RunState::kFailed;
  if (!last.empty()) return RunState::kBroken;
  if (run.steps.empty() && run.ledger.empty()) return RunState::kEmpty;
  std::error_code ignored;
  return fs::exists(folder / "model" / "config.json", ignored) ? RunState::kFinished : RunState::kUnknown;
}

void check_is_run(const fs::path& folder) {
  std::error_code error;
  const std::string place = "[report] " + quoted(folder.string());
  if (!fs::is_directory(folder, error)) {
    throw Error(ErrorCode::kUsage, place + ": got " + (fs::exists(folder, error) ? "a file" : "nothing there") +
                                       ", expected the output.folder of a training. Name a folder such as runs/train.");
  }
  for (const char* name : {kMetrics, kLedger, kEvents, kConfig}) {
    if (fs::exists(folder / name, error)) return;
  }
  throw Error(ErrorCode::kUsage, place +
                                     ": got a folder without metrics.jsonl and config.toml, expected the "
                                     "output.folder of a training. Name a folder such as runs/train.");
}

std::string name_of(const fs::path& folder, int parts) {
  fs::path name;
  fs::path left = folder;
  for (int i = 0; i < parts && !left.filename().empty(); ++i, left = left.parent_path())
    name = name.empty() ? left.filename() : left.filename() / name;
  return name.empty() ? folder.string() : name.string();
}

}  // namespace

std::vector<Setting> read_settings(const std::string& toml) {
  std::vector<Setting> settings;
  std::string section;
  for (size_t begin = 0; begin < toml.size();) {
    const size_t end = std::min(toml.find('\n', begin), toml.size());
    const std::string line = toml.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = line.find(" = ");
    if (line.size() > 2 && line.front() == '[' && line.back() == ']') {
      section = line.substr(1, line.size() - 2) + ".";
    } else if (equals != std::string::npos && line.front() != '#') {
      settings.push_back({valid_text(section + line.substr(0, equals)), valid_text(line.substr(equals + 3))});
    }
  }
  return settings;
}

RunRecord read_run(const fs::path& folder) {
  check_is_run(folder);
  std::error_code ignored;
  const fs::path whole = fs::weakly_canonical(folder, ignored);
  RunRecord run;
  run.folder = valid_text(whole.empty() ? folder.string() : whole.string());
  run.name = name_of(run.folder, 1);
  read_events(folder, run);
  read_metrics(folder, run);
  read_ledger(folder, run);
  read_samples(folder, run);
  divide_by_steps(run);
  run.settings = read_settings(read_small_file(folder / kConfig, run.notes));
  run.state = state_of(folder, run);
  if (run.steps.empty() && run.ledger.empty())
    run.notes.push_back("No step has been logged yet: there is nothing to draw.");
  return run;
}

void name_apart(std::vector<RunRecord>& runs) {
  for (int parts = 1; parts <= 8; ++parts) {
    std::set<std::string> names;
    for (RunRecord& run : runs) names.insert(run.name = name_of(run.folder, parts));
    if (names.size() == runs.size()) return;
  }
}

}  // namespace fsdp::report
