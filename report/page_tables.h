#pragma once

#include <string>
#include <vector>

#include "report/run_files.h"

namespace fsdp::report {

// HTML; "" where there is nothing to tell.

// The letter of a run in its colour.
std::string run_badge(int place);
// "resumed": what an event's kind means, for people.
std::string event_words(const std::string& kind);
// What is trained, by how many ranks, and how, as the last start says.
std::string subject_of(const RunRecord& run);

std::string event_section(const std::vector<RunRecord>& runs);
// In what the runs differ; of a single one, in what it differs from the defaults. And all settings.
std::string settings_section(const std::vector<RunRecord>& runs, const std::vector<Setting>& defaults);
std::string sample_section(const std::vector<RunRecord>& runs);

}  // namespace fsdp::report
