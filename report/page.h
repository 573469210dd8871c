#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/run_files.h"

namespace fsdp::report {

struct PageOptions {
  std::string written;                   // when, for people
  std::string version;                   // of the program
  std::string command;                   // that writes the page again
  std::vector<Setting> defaults;         // what a single run's settings are compared with
  std::optional<int> refresh_seconds{};  // set: a browser loads the page again so often
};

// One page of HTML about these runs (1 to kMostRuns), which needs nothing else: pictures and script are in it.
std::string write_page(const std::vector<RunRecord>& runs, const PageOptions& options);

}  // namespace fsdp::report
