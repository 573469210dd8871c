// `fsdp plan calibrate`: this machine as a hardware file.
#include "app/plan_calibrate.h"

#include <cstdio>
#include <cstdlib>

#include "app/command_line.h"
#include "fsdp/fsdp.h"
#include "io/base/atomic_file.h"
#include "plan/time/hardware_file.h"
#include "train/base/format.h"
#include "train/base/threads.h"
#include "train/calibrate/rank_calibration.h"

namespace fsdp::app {
namespace {

constexpr const char* kCalibrateHelp =
    "Measures this machine's CPU as a rank of training has it: linear layers, attention, memory and, with several\n"
    "ranks, the link between them. Writes what `fsdp plan --hardware FILE` reads. Nothing else should run meanwhile.";

struct CalibrateOptions {
  std::string out;
  int ranks = 1;
  double seconds = 10;
  std::string precision = "fp32";
};

[[noreturn]] void refuse_calibration(const std::string& message) {
  throw Error(ErrorCode::kUsage, "[calibrate] " + message);
}

void check(const CalibrateOptions& options) {
  if (options.precision != "fp32" && options.precision != "bf16")
    refuse_calibration("precision: got '" + options.precision + "', expected fp32 or bf16.");
  if (options.ranks < 1) refuse_calibration("ranks: got " + std::to_string(options.ranks) + ", expected at least 1.");
  if (!(options.seconds > 0) || options.seconds > 3600)
    refuse_calibration("seconds: got " + std::to_string(options.seconds) + ", expected more than 0, at most 3600.");
  if (options.ranks > 1 && std::getenv("WORLD_SIZE") != nullptr)
    refuse_calibration("ranks: got " + std::to_string(options.ranks) +
                       " where a launcher started ranks already, expected no --ranks there.");
}

// The same again as ranks of a launcher, which print for themselves.
int calibrate_as_ranks(const CalibrateOptions& options) {
  Arguments words = {"--nproc", std::to_string(options.ranks), "--no-prefix", "--", "plan", "calibrate"};
  words.insert(words.end(), {"--precision", options.precision, "--seconds", std::to_string(options.seconds)});
  if (!options.out.empty()) words.insert(words.end(), {"--out", options.out});
  return run_launch(words);
}

void print_measured(const plan::time::Hardware& hardware, const std::string& precision, const World& world) {
  const double peak = hardware.peak_flops.begin()->second;
  std::printf("%d rank(s), each while all of them compute:\n", world.size);
  std::printf("  linear layers, %-11s %8.1f GFLOP/s, %.1f us each beside that\n", precision.c_str(), 1e-9 * peak,
              hardware.launch_us);
  std::printf("  attention                  %8.1f GFLOP/s forward, %.1f backward\n",
              1e-9 * peak * hardware.attention_forward_efficiency,
              1e-9 * peak * hardware.attention_backward_efficiency);
  std::printf("  with a mask                %8.1f GFLOP/s forward, %.1f backward\n",
              1e-9 * peak * hardware.masked_attention_forward_efficiency,
              1e-9 * peak * hardware.masked_attention_backward_efficiency);
  std::printf("  other operators            %8.1f us each beside what they read and write\n", hardware.operator_us);
  std::printf("  memory                     %8.1f GB/s\n", 1e-9 * hardware.memory_bytes_per_second);
  if (world.size == 1) {
    std::printf("  links                      not measured with one rank: %.1f GB/s in a node, %.2f between nodes\n",
                1e-9 * hardware.node.bytes_per_second, 1e-9 * hardware.network.bytes_per_second);
    return;
  }
  std::printf(
      "  link between ranks         %8.1f GB/s received, %.1f us a call; computing beside it is %.0f %% slower\n",
      1e-9 * hardware.node.bytes_per_second, hardware.start_us, 100 * hardware.slowdown_by_transfers);
  std::printf("  network between hosts      not measured: %.2f GB/s a rank\n",
              1e-9 * hardware.network.bytes_per_second);
}

}  // namespace

int run_plan_calibrate(const Arguments& arguments) {
  CalibrateOptions options;
  CLI::App parser(kCalibrateHelp, "fsdp plan calibrate");
  parser.add_option(kOutput, options.out, "the file to write, such as this_machine.json; without it, nothing is kept");
  parser.add_option("--ranks", options.ranks, "ranks of this machine, as training will have them")
      ->capture_default_str();
  parser.add_option("--precision", options.precision, "fp32 or bf16: what training will compute in")
      ->capture_default_str();
  parser.add_option("--seconds", options.seconds, "that it may take")->capture_default_str();
  if (parse(parser, arguments) == Parsed::kHelpShown) return 0;
  check(options);
  if (options.ranks > 1) return calibrate_as_ranks(options);
  const World world = init();
  train::set_threads(world);
  const plan::time::Hardware hardware =
      train::calibrate_ranks(world, options.precision == "bf16" ? c10::kBFloat16 : c10::kFloat, options.seconds);
  if (world.rank != 0) return 0;
  print_measured(hardware, options.precision, world);
  if (options.out.empty()) {
    std::printf("--out FILE keeps it for `fsdp plan --hardware FILE`\n");
    return 0;
  }
  io::write_file_atomically(options.out, to_json(hardware).dump(2) + "\n");
  std::printf("wrote %s: `fsdp plan ... --hardware %s`\n", options.out.c_str(), options.out.c_str());
  return 0;
}

}  // namespace fsdp::app
