#include <cstdio>

#include "app/command_line.h"
#include "app/simulate_options.h"
#include "fsdp/fsdp.h"
#include "train/base/stop_signal.h"
#include "train/config/config_file.h"
#include "train/config/option_table.h"
#include "train/loop/run.h"

namespace fsdp::app {
namespace {

constexpr const char* kTrainHelp =
    "Usage: fsdp train [CONFIG.toml] [--section.key=value ...] [--dry-run | --simulate-world N]\n\n"
    "Trains a model: alone, or as one rank of `fsdp launch`, torchrun, srun or mpirun. Keys of the configuration with\n"
    "their defaults. --dry-run checks everything, prints what a rank will hold and what will travel, and ends.\n";

}  // namespace

int run_train(const Arguments& all_arguments) {
  Arguments arguments = all_arguments;
  const auto simulated = take_simulated_world(arguments);
  std::string file;
  Arguments overrides;
  auto kind = train::RunKind::kReal;
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") {
      std::printf("%s%s%s", kTrainHelp, simulate_help().c_str(), train::option_help().c_str());
      return 0;
    }
    if (argument == "--dry-run" && simulated)
      throw Error(ErrorCode::kUsage, "[train] got --dry-run and --simulate-world, expected one of them.");
    if (argument == "--dry-run") {
      kind = train::RunKind::kDry;
    } else if (argument.rfind('-', 0) != 0 && file.empty() && overrides.empty()) {
      file = argument;
    } else {
      overrides.push_back(argument);
    }
  }
  const train::Config config = train::load_config(file, overrides);
  InitOptions options;
  options.dump_folder = config.output.folder;  // where the calls of a rank go if one fails
  train::StopSignal stop_signal;               // before init() starts threads
  const World world = init(options);
  if (simulated) return train::run_simulated(config, *simulated);
  return train::run_training(config, world, stop_signal, kind);
}

}  // namespace fsdp::app
