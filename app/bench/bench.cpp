// `fsdp bench strategies`: one configuration trained with each strategy.
#include <cstdio>
#include <cstdlib>

#include "app/bench/strategy_run.h"
#include "app/command_line.h"
#include "fsdp/base/error.h"
#include "io/base/atomic_file.h"
#include "train/base/terminal_text.h"
#include "train/config/config_file.h"

namespace fsdp::app {
namespace {

constexpr const char* kBenchHelp =
    "`fsdp bench strategies [CONFIG.toml] [--section.key=value ...]`: trains a few steps of one configuration with "
    "each\n"
    "of zero0, zero1, zero2 and zero3, one after the other as ranks of this host, and compares times, memory, what\n"
    "travels (beside what `fsdp plan` says) and losses. Nothing else should run meanwhile; nothing is kept.";

int bench_strategies(const Arguments& arguments) {
  StrategyQuestion question;
  std::string svg;
  std::vector<std::string> names = {"zero0", "zero1", "zero2", "zero3"};
  bool json = false;
  CLI::App parser(kBenchHelp, "fsdp bench strategies");
  parser.allow_extras();
  parser.add_option("CONFIG", question.file, "training configuration; --section.key=value may follow");
  parser.add_option("--ranks", question.ranks, "of this host; default 2")->check(CLI::Range(1, 1024));
  parser.add_option("--steps", question.steps, "of each run; default 20")->check(CLI::Range(4, 100000));
  parser.add_option("--strategies", names, "which; default zero0,zero1,zero2,zero3")->delimiter(',');
  parser.add_flag("--json", json, "the same as JSON, with the losses of each step");
  parser.add_option("--svg", svg, "writes a picture of times, memory and traffic");
  if (parse(parser, arguments) == Parsed::kHelpShown) return 0;
  question.overrides = parser.remaining();
  if (std::getenv("WORLD_SIZE") != nullptr)
    throw Error(ErrorCode::kUsage,
                "[bench] got a process that a launcher started, expected none: it starts ranks "
                "itself. Run it alone, with --ranks.");
  const train::Config config = train::load_config(question.file, question.overrides);
  if (config.data.path.empty())
    throw Error(ErrorCode::kUsage, "[bench] data.path: got none, expected a data set. Add --data.path=FOLDER.");
  std::vector<StrategyRun> runs;
  for (const std::string& name : names) {
    if (!json) std::fprintf(stderr, "bench: %s ...\n", train::for_terminal(name).c_str());
    runs.push_back(run_strategy(question, name));
  }
  if (!svg.empty()) io::write_file_atomically(svg, to_svg(runs, question));
  const std::string text =
      json ? to_json(runs, question).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
           : train::for_terminal(to_text(runs, question));
  std::fputs(text.c_str(), stdout);
  for (const StrategyRun& run : runs)
    if (!run.failure.empty()) return static_cast<int>(ErrorCode::kInternal);
  return 0;
}

}  // namespace

int run_bench(const Arguments& arguments) {
  if (!arguments.empty() && arguments.front() == "strategies")
    return bench_strategies({arguments.begin() + 1, arguments.end()});
  CLI::App parser(kBenchHelp, "fsdp bench");
  if (parse(parser, arguments) == Parsed::kHelpShown) return 0;
  throw Error(ErrorCode::kUsage, "[bench] got nothing to measure, expected `strategies`. See `fsdp bench --help`.");
}

}  // namespace fsdp::app
