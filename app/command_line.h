#pragma once

#include <CLI/CLI.hpp>

#include "app/verbs.h"

namespace fsdp::app {

// The option of every verb that writes one file or folder.
inline constexpr const char* kOutput = "-o,--output,--out";

enum class Parsed { kRun, kHelpShown };

// Parses the arguments of one verb; --help prints the text of `parser` and is kHelpShown. Throws Error(kUsage) in one
// line.
Parsed parse(CLI::App& parser, const Arguments& arguments);

}  // namespace fsdp::app
