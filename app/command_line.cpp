#include "app/command_line.h"

#include <cstdio>

#include "fsdp/base/error.h"

namespace fsdp::app {

Parsed parse(CLI::App& parser, const Arguments& arguments) {
  try {
    Arguments reversed(arguments.rbegin(), arguments.rend());  // what CLI11 wants of a vector
    parser.parse(std::move(reversed));
    return Parsed::kRun;
  } catch (const CLI::CallForHelp&) {
    std::fputs(parser.help().c_str(), stdout);
    return Parsed::kHelpShown;
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    for (char& c : text) {
      c = c == '\n' ? ' ' : c;
    }
    throw Error(ErrorCode::kUsage, "[" + parser.get_name() + "] " + text + ". See `" + parser.get_name() + " --help`.");
  }
}

}  // namespace fsdp::app
