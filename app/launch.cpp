#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "app/command_line.h"
#include "app/launch/launcher.h"
#include "fsdp/base/error.h"
#include "fsdp/comm/rendezvous/secret_source.h"
#include "fsdp/comm/store/sockets.h"
#include "fsdp/comm/store/store_server.h"

namespace fsdp::app {
namespace {

constexpr const char* kLaunchHelp =
    "Usage: fsdp launch --nproc N [OPTIONS] [--] VERB [ARGUMENTS]\n\n"
    "Starts VERB (of fsdp, or any other program by its path) as N ranks on this host. Each line they print starts\n"
    "with [rank]. When one fails, it is named, the others are stopped, and its exit code is returned.\n\n"
    "  --nproc N                  number of ranks\n"
    "  --max-restarts N           start all ranks again after a failure that may pass: a signal, a lost peer, the\n"
    "                             disk, an unknown error; or when ranks stop without the launcher's being asked;\n"
    "                             default 0\n"
    "  --restart-backoff SECONDS  wait before the first restart, doubled each time up to 60; default 1\n"
    "  --min-uptime SECONDS       three attempts in a row that end sooner and without a new checkpoint are the\n"
    "                             last; default 10\n"
    "  --grace SECONDS            between asking ranks to stop and killing them; default 30; after a failure at\n"
    "                             most 10\n"
    "  --no-prefix                print lines as they are\n\n"
    "TERM, INT and USR1 are passed on to the ranks, once each. If these save and exit with code 75, so does the\n"
    "launcher; a second INT or TERM kills them. Ranks find in FSDP_RESTART_COUNT how often they were started again.\n"
    "Ranks prove to each other that they belong to the job by a secret: a new one, or that of FSDP_JOB_SECRET or\n"
    "FSDP_JOB_SECRET_FILE. Connections that do not know it are refused and named.\n"
    "OMP_NUM_THREADS, where unset, becomes cores / N, and GOMP_SPINCOUNT 10000, so that threads that wait soon sleep.\n"
    "For more than one host use torchrun, srun or mpirun.\n";

constexpr int kMostRanks = 4096;
constexpr int kMostRestarts = 1'000'000;
constexpr double kMostSeconds = 1e6;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kUsage, "[launch] " + message + ". See `fsdp launch --help`.");
}

double parse_number(const std::string& option, const std::string& text, double low, double high,
                    const std::string& what) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= low && value <= high)) {
    refuse(option + ": got '" + text + "', expected " + what);
  }
  return value;
}

int parse_count(const std::string& option, const std::string& text, int low, int high) {
  const std::string what = "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
  const double value = parse_number(option, text, low, high, what);
  if (value != std::floor(value)) {
    refuse(option + ": got '" + text + "', expected " + what);
  }
  return static_cast<int>(value);
}

std::chrono::milliseconds parse_seconds(const std::string& option, const std::string& text) {
  const double seconds = parse_number(option, text, 0, kMostSeconds, "a number of seconds from 0 to 1000000");
  return std::chrono::milliseconds(std::llround(1e3 * seconds));
}

using Setter = void (*)(LaunchOptions& options, const std::string& name, const std::string& text);

const std::map<std::string, Setter>& options_with_value() {
  static const std::map<std::string, Setter> setters = {
      {"--nproc", [](LaunchOptions& options, const std::string& name,
                     const std::string& text) { options.nproc = parse_count(name, text, 1, kMostRanks); }},
      {"--max-restarts",
       [](LaunchOptions& options, const std::string& name, const std::string& text) {
         options.restarts.max_restarts = parse_count(name, text, 0, kMostRestarts);
       }},
      {"--restart-backoff", [](LaunchOptions& options, const std::string& name,
                               const std::string& text) { options.restarts.backoff = parse_seconds(name, text); }},
      {"--min-uptime", [](LaunchOptions& options, const std::string& name,
                          const std::string& text) { options.restarts.min_uptime = parse_seconds(name, text); }},
      {"--grace", [](LaunchOptions& options, const std::string& name, const std::string& text) {
         options.grace = parse_seconds(name, text);
       }}};
  return setters;
}

struct LaunchLine {
  LaunchOptions options;
  Arguments command;
  bool help = false;
};

// Options end at the first word that is not one: all that follows belongs to the command, dashes included.
LaunchLine parse_line(const Arguments& arguments) {
  LaunchLine line;
  line.options.nproc = 0;
  size_t next = 0;
  while (next < arguments.size() && arguments[next].rfind('-', 0) == 0) {
    const std::string& word = arguments[next++];
    const size_t equals = word.find('=');
    const std::string given = word.substr(0, equals);
    const std::string name = given == "-n" ? "--nproc" : given;
    const auto setter = options_with_value().find(name);
    if (word == "--") {
      break;
    }
    if (word == "--no-prefix") {
      line.options.prefix = false;
    } else if (word == "--help" || word == "-h") {
      line.help = true;
    } else if (setter == options_with_value().end()) {
      refuse("unknown option " + word);
    } else if (equals != std::string::npos) {
      setter->second(line.options, name, word.substr(equals + 1));
    } else if (next == arguments.size()) {
      refuse(name + " needs a value");
    } else {
      setter->second(line.options, name, arguments[next++]);
    }
  }
  line.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(next), arguments.end());
  return line;
}

// What each rank runs: this program with a verb, or another one.
void choose_program(LaunchOptions& options, const Arguments& command) {
  if (command.empty()) {
    refuse("nothing to start: name a verb, as in `fsdp launch --nproc 2 -- train run.toml`");
  }
  options.arguments = command;
  if (find_verb(command.front()) != nullptr) {
    if (command.front() == "launch") {
      refuse("a launcher cannot launch itself");
    }
    options.arguments.insert(options.arguments.begin(), "fsdp");
  } else {
    options.program = command.front();
    if (options.program.find('/') == std::string::npos) {
      refuse("unknown verb " + options.program + guess_verb(options.program) +
             " Another program needs a path with a '/'");
    }
  }
}

// Those that this process may run on.
int count_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Set before LibTorch is loaded, which looks at it then; ranks inherit it.
void choose_threads(LaunchOptions& options) {
  options.cores = count_cores();
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  options.threads = std::max(1, options.cores / options.nproc);
  setenv("OMP_NUM_THREADS", std::to_string(*options.threads).c_str(), 1);
}

// What the user gave, or a new one.
comm::JobSecret choose_secret(LaunchOptions& options) {
  const comm::JobSecret given =
      comm::read_job_secret([](const char* name) -> const char* { return std::getenv(name); });
  if (given.is_given()) return given;
  options.made_secret = comm::JobSecret::make_text();
  return comm::JobSecret(options.made_secret);
}

}  // namespace

int run_launch(const Arguments& arguments) {
  LaunchLine line = parse_line(arguments);
  if (line.help) {
    std::fputs(kLaunchHelp, stdout);
    return 0;
  }
  if (line.options.nproc == 0) {
    refuse("--nproc is missing");
  }
  choose_program(line.options, line.command);
  choose_threads(line.options);
  // Once for all ranks, which are copies of this process.
  if (line.options.program.empty()) line.options.run_verb = load_verbs();
  const comm::JobSecret secret = choose_secret(line.options);
  // Signals are blocked by the Launcher; the threads of a store must start after that, to inherit the mask.
  Launcher launcher(std::move(line.options));
  Notices notices;
  FileDescriptor listener;
  std::optional<comm::StoreServer> server;
  JobStore store;
  store.listen = [&] {
    server.reset();
    listener = comm::StoreServer::listen();
    return comm::port_of(listener);
  };
  store.serve = [&] {
    server.emplace(
        std::move(listener),
        comm::StoreServerOptions{
            .secret = secret, .strangers = {}, .on_refusal = [&](const std::string& text) { notices.add(text); }});
  };
  return launcher.run(store, notices);
}

}  // namespace fsdp::app
