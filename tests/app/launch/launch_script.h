// `fsdp launch` with small shell scripts as ranks.
#pragma once

#include <string>
#include <vector>

#include "tests/app/command.h"

namespace fsdp::app {

// Launches `script` with /bin/sh as `ranks` ranks; the launcher is $PPID of each.
CommandResult launch_script(int ranks, const std::string& script, const std::vector<std::string>& options = {},
                            const std::vector<std::string>& environment = {});

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

int count(const std::string& text, const std::string& part);

// A line of script that waits until `file` is there. The launcher's time limit ends it otherwise.
std::string wait_for(const std::string& file);

}  // namespace fsdp::app
