#pragma once

#include <CLI/CLI.hpp>

#include "app/verbs.h"

namespace fsdp::app {

enum class Parsed { kRun, kHelpShown };

// Parses the arguments of one verb; --help prints the text of `parser` and is kHelpShown. Throws Error(kUsage) in one
// line.
Parsed parse(CLI::App& parser, const Arguments& arguments);

}  // namespace fsdp::app
