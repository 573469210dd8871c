// The end of every benchmark's parse().
#pragma once

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace fsdp::benchmarks {

// Fills what `app` was told to; ends the program after --help (0) and on arguments that do not fit (2).
inline void parse_or_exit(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
}

}  // namespace fsdp::benchmarks
