#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "app/command_line.h"
#include "app/launch/launcher.h"
#include "fsdp/base/error.h"
#include "fsdp/comm/store.h"

namespace fsdp::app {
namespace {

constexpr const char* kHelp =
    "Usage: fsdp launch --nproc N [--grace SECONDS] [--no-prefix] [--] VERB [ARGUMENTS]\n\n"
    "Starts VERB (of fsdp, or any other program by its path) as N ranks on this host. Each line they print starts "
    "with\n"
    "[rank]. When one fails, it is named, the others are stopped, and its exit code is returned.\n\n"
    "  --nproc N         number of ranks\n"
    "  --grace SECONDS   between asking ranks to stop (TERM) and killing them (KILL); default 10\n"
    "  --no-prefix       print lines as they are\n\n"
    "OMP_NUM_THREADS, where unset, becomes cores / N. For more than one host use torchrun, srun or mpirun.\n";

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kUsage, "[launch] " + message + ". See `fsdp launch --help`.");
}

double parse_number(const std::string& option, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value) || value < 0) {
    refuse(option + ": got '" + text + "', expected a number");
  }
  return value;
}

// Options end at the first word that is not one: all that follows belongs to the command, dashes included.
struct LaunchLine {
  LaunchOptions options;
  Arguments command;
  bool help = false;
};

LaunchLine parse_line(const Arguments& arguments) {
  LaunchLine line;
  line.options.nproc = 0;
  size_t next = 0;
  const auto value_of = [&](const std::string& word, const std::string& option) {
    if (word.size() > option.size() && word[option.size()] == '=') {
      return word.substr(option.size() + 1);
    }
    if (next == arguments.size()) {
      refuse(option + " needs a value");
    }
    return arguments[next++];
  };
  const auto is = [](const std::string& word, const std::string& option) {
    return word == option || word.rfind(option + "=", 0) == 0;
  };
  while (next < arguments.size() && arguments[next].rfind('-', 0) == 0) {
    const std::string word = arguments[next++];
    if (word == "--") {
      break;
    }
    if (is(word, "--nproc") || is(word, "-n")) {
      const double nproc = parse_number("--nproc", value_of(word, word[1] == '-' ? "--nproc" : "-n"));
      if (nproc < 1 || nproc > 4096 || nproc != std::floor(nproc)) {
        refuse("--nproc: expected a whole number from 1 to 4096");
      }
      line.options.nproc = static_cast<int>(nproc);
    } else if (is(word, "--grace")) {
      line.options.grace =
          std::chrono::milliseconds(std::llround(1e3 * parse_number("--grace", value_of(word, "--grace"))));
    } else if (word == "--no-prefix") {
      line.options.prefix = false;
    } else if (word == "--help" || word == "-h") {
      line.help = true;
    } else {
      refuse("unknown option " + word);
    }
  }
  line.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(next), arguments.end());
  return line;
}

}  // namespace

int run_launch(const Arguments& arguments) {
  LaunchLine line = parse_line(arguments);
  if (line.help) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (line.options.nproc == 0) {
    refuse("--nproc is missing");
  }
  if (line.command.empty()) {
    refuse("nothing to start: name a verb, as in `fsdp launch --nproc 2 -- train run.toml`");
  }
  line.options.arguments = line.command;
  if (find_verb(line.command.front()) != nullptr) {
    if (line.command.front() == "launch") {
      refuse("a launcher cannot launch itself");
    }
    line.options.program = "/proc/self/exe";
    line.options.arguments.insert(line.options.arguments.begin(), "fsdp");
  } else {
    line.options.program = line.command.front();
    if (line.options.program.find('/') == std::string::npos) {
      refuse("unknown verb " + line.options.program + " (another program needs a path with a '/')");
    }
  }
  // Signals are blocked by the Launcher; the store's thread must start after that, to inherit the mask.
  Launcher launcher(std::move(line.options));
  const comm::StoreServer store;
  return launcher.run(store.port());
}

}  // namespace fsdp::app
