// `fsdp doctor`: whether training would work on this machine, and what would slow it down.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <cstdio>

#include "app/command_line.h"
#include "app/doctor/host_checks.h"
#include "app/doctor/network_checks.h"
#include "app/doctor/rank_checks.h"
#include "fsdp/fsdp.h"
#include "train/base/matmul_peak.h"
#include "train/base/terminal_text.h"
#include "train/base/threads.h"

namespace fsdp::app {
namespace {

constexpr const char* kDoctorHelp =
    "Looks at what training needs: versions, cores, memory, /dev/shm, disk, ports, host name, links between ranks, "
    "GPUs.\n"
    "Each line: a verdict (ok, slow, broken), what, and what was found; and what to do about it.\n"
    "`fsdp launch --nproc N -- doctor`, torchrun, srun or mpirun: the same on every rank, with clocks and the link\n"
    "between these ranks. Exit code: 0 if training would work, else how it would fail (docs/errors.md).";

struct DoctorOptions {
  std::string folder = ".";
  std::string probe;
  bool json = false;
  bool quick = false;
};

Finding check_versions() {
  struct utsname system = {};
  uname(&system);
  return {"versions", std::string("fsdp " FSDP_VERSION ", LibTorch " TORCH_VERSION " (") + at::get_cpu_capability() +
                          "), " + system.sysname + " " + system.release + " " + system.machine};
}

Finding check_arithmetic(const World& world) {
  const double peak = train::peak_of_a_rank(world, 0, at::kFloat, at::kCPU);
  char text[80];
  std::snprintf(text, sizeof(text), "%.3g TFLOP/s in fp32 with %d thread(s), while all ranks compute", 1e-12 * peak,
                at::get_num_threads());
  return {"arithmetic", text};
}

// The disk of a host is measured by one of its ranks.
Findings check_here(const World& world, const DoctorOptions& options) {
  Findings findings{check_versions()};
  for (Finding& finding : check_host()) findings.push_back(std::move(finding));
  if (!options.quick) findings.push_back(check_arithmetic(world));
  if (world.local_rank == 0) findings.push_back(check_disk(options.folder, options.quick ? 1 : 128));
  for (Finding& finding : check_network()) findings.push_back(std::move(finding));
  return findings;
}

Findings check_all(const World& world, const DoctorOptions& options) {
  Findings findings = check_here(world, options);
  if (world.size > 1) {
    findings = merged(gather_findings(world, findings));
    for (Finding& finding : check_ranks(world)) findings.push_back(std::move(finding));
  } else if (!options.quick) {
    for (const char* transport : {"shm", "gloo"}) findings.push_back(probe_transport(transport));
  }
  return findings;
}

void print_findings(const Findings& findings, const DoctorOptions& options) {
  if (!options.json) {
    std::fputs(train::for_terminal(to_text(findings)).c_str(), stdout);
    return;
  }
  nlohmann::ordered_json json;
  json["works"] = exit_code_of(findings) == 0;
  json["findings"] = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) json["findings"].push_back(to_json(finding));
  std::puts(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

}  // namespace

int run_doctor(const Arguments& arguments) {
  DoctorOptions options;
  CLI::App parser(kDoctorHelp, "fsdp doctor");
  parser.add_option("--folder", options.folder, "where runs will write (output.folder); default: here");
  parser.add_flag("--quick", options.quick, "look only: measure neither arithmetic nor links, and the disk by 1 MiB");
  parser.add_flag("--json", options.json, "the same as JSON");
  parser.add_option("--probe", options.probe)->group("");  // of our own launcher
  if (parse(parser, arguments) == Parsed::kHelpShown) return 0;
  const World world = init();
  train::set_threads(world);
  if (!options.probe.empty()) {
    answer_probe(world, options.probe);
    return 0;
  }
  const Findings findings = check_all(world, options);
  if (world.rank == 0) print_findings(findings, options);
  return exit_code_of(findings);
}

}  // namespace fsdp::app
