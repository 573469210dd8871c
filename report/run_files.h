#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fsdp::report {

// One logged step of metrics.jsonl (docs/training.md). NaN where the file has no number.
struct StepFigures {
  int64_t step = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  double step_ms = 0, data_ms = 0;  // means since the line before
  double exposed_ms = 0;            // of communication, per step
  double tokens = 0, tokens_per_s = 0, mfu = 0;
  double resident = 0, peak = 0, params = 0, grads = 0, optimizer = 0, comm = 0;  // bytes of rank 0
  double device_reserved = 0;
  double received = 0;  // bytes, per step
};

struct HeldoutFigures {
  int64_t step = 0;
  double loss = 0, perplexity = 0, bits_per_byte = 0;
};

// One step of ledger.jsonl, which has all of them.
struct LedgerFigures {
  int64_t step = 0;
  double loss = 0, grad_norm = 0;
  bool skipped = false;
};

// A line of events.jsonl.
struct Event {
  double time = 0;   // seconds since 1970; NaN: unknown
  std::string kind;  // "skipped": the names of docs/config.md
  int64_t step = 0;
  std::string text;
  double steps = 0, ranks = 0, parameters = 0;  // of "started"; NaN elsewhere
};

struct SampleText {
  int64_t step = 0;
  std::string prompt, text;
};

struct Setting {
  std::string key, value;
  bool operator==(const Setting&) const = default;
};

enum class RunState { kEmpty, kRunning, kFinished, kStopped, kFailed, kBroken, kUnknown };

// What a run wrote into its output.folder, as far as it can be read. All text is UTF-8.
struct RunRecord {
  std::string name;  // of the folder; unique in a report
  std::string folder;
  RunState state = RunState::kUnknown;
  std::vector<StepFigures> steps;  // these four by rising step
  std::vector<HeldoutFigures> heldout;
  std::vector<LedgerFigures> ledger;
  std::vector<SampleText> samples;
  std::vector<Event> events;       // in the order in which they happened
  std::vector<Setting> settings;   // of config.toml
  std::vector<std::string> notes;  // what is missing or could not be read
};

// Reads a run that may still be going on. Lines that are no objects with a step are left out, with a note. Throws
// Error(kUsage) if the folder is not there or no run's, Error(kFileSystem) if it cannot be read.
RunRecord read_run(const std::filesystem::path& folder);

// "a.b" -> value of a TOML text as `fsdp config` prints it; other lines are left out.
std::vector<Setting> read_settings(const std::string& toml);

// Names that tell the runs apart: the folders', with as much of the path before as that needs.
void name_apart(std::vector<RunRecord>& runs);

}  // namespace fsdp::report
