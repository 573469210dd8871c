// Runs a program of the test and keeps what it said.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace fsdp::app {

struct CommandResult {
  int exit_code = -1;  // 128 + n for signal n
  std::string out;
  std::string err;
  double seconds = 0;
};

// Runs `words` (the first is the program) with extra environment "NAME=value"; kills it after the time given, which
// fails the test that called. Variables of launchers are not inherited.
CommandResult run_command(const std::vector<std::string>& words, const std::vector<std::string>& environment = {},
                          std::chrono::seconds limit = std::chrono::seconds(120));

// The `fsdp` binary with these arguments, split at spaces.
CommandResult run_fsdp(const std::string& arguments, const std::vector<std::string>& environment = {});

// The binary below a launcher of `ranks` ranks.
CommandResult launch_fsdp(int ranks, const std::string& arguments, const std::vector<std::string>& environment = {});

}  // namespace fsdp::app
