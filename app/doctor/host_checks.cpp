#include "app/doctor/host_checks.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "fsdp/base/units.h"
#include "fsdp/memory/meminfo.h"
#include "kernels/base/cpu_isa.h"
#include "train/base/format.h"
#include "train/base/threads.h"

namespace fsdp::app {
namespace {

namespace fs = std::filesystem;

// The first line of a file of the system; nothing where there is none.
std::optional<std::string> first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

// The file of a limit of this process's control group, or of the nearest group above that has one (version 2, else 1).
std::optional<std::string> group_limit(const char* file, const char* file_of_version_1) {
  const std::string group = first_line("/proc/self/cgroup").value_or("0::/");
  for (fs::path path = fs::path("/sys/fs/cgroup") / fs::path(group.substr(group.rfind(':') + 1)).relative_path();;
       path = path.parent_path()) {
    const auto limit = first_line(path / file);
    if (limit && limit->rfind("max", 0) != 0) return limit;
    if (path == "/sys/fs/cgroup" || path.empty() || path == "/") break;
  }
  return first_line(fs::path("/sys/fs/cgroup") / file_of_version_1);
}

Finding check_cores() {
  const size_t allowed = train::available_cores().size();
  const unsigned all = std::thread::hardware_concurrency();
  Finding finding{"cores", std::to_string(allowed) + " of " + std::to_string(std::max<size_t>(all, allowed))};
  std::istringstream limit(group_limit("cpu.max", "none").value_or(""));
  double quota = 0, period = 0;
  if (limit >> quota >> period && period > 0 && quota / period < static_cast<double>(allowed) - 0.01) {
    finding.value += train::format_text(", limited to the time of %.3g", quota / period);
    finding.verdict = Health::kSlow;
    finding.advice = train::format_text(
        "Threads beyond the limit are stopped again and again: start at most %d rank(s) with OMP_NUM_THREADS=1.",
        std::max(1, static_cast<int>(quota / period)));
  }
  return finding;
}

Finding check_instructions() {
  Finding finding{"instructions", kernels::describe_cpu_isa()};
  const bool is_slow = finding.value.rfind("scalar", 0) == 0 || finding.value.rfind("sse4", 0) == 0;
  if (is_slow) {
    finding.verdict = Health::kSlow;
    finding.advice = "Unset FSDP_CPU_ISA, or use a machine with AVX2 or more: products are several times faster there.";
  }
  return finding;
}

Finding check_memory() {
  const int64_t total = meminfo_bytes("MemTotal");
  int64_t free = meminfo_bytes("MemAvailable");
  Finding finding{"memory", format_bytes(free) + " free of " + format_bytes(total)};
  const auto limit = group_limit("memory.max", "memory/memory.limit_in_bytes");
  const double bytes = limit ? std::strtod(limit->c_str(), nullptr) : 0;
  if (bytes > 0 && bytes < static_cast<double>(total)) {
    finding.value += ", limited to " + format_bytes(static_cast<int64_t>(bytes)) + " by its control group";
    free = std::min(free, static_cast<int64_t>(bytes));
  }
  if (free < 512 * kMiB) {
    finding.verdict = Health::kBroken;
    finding.failure = ErrorCode::kMemory;
    finding.advice = "A rank needs some 200 MiB before its model. End other programs, or raise the limit.";
  } else if (free < 2 * kGiB) {
    finding.verdict = Health::kSlow;
    finding.advice = "That is little: `fsdp plan` says beforehand what a run takes.";
  }
  return finding;
}

Finding check_shared_memory() {
  struct statvfs status = {};
  Finding finding{"/dev/shm", "not there"};
  const std::string advice =
      "Ranks of a host share weights there. In a container: --shm-size=8g or --ipc=host. Else "
      "FSDP_TRANSPORT=gloo does without, slower.";
  if (statvfs("/dev/shm", &status) != 0 || access("/dev/shm", W_OK) != 0) {
    finding.verdict = Health::kBroken;
    finding.failure = ErrorCode::kMemory;
    finding.advice = advice;
    return finding;
  }
  const auto size = static_cast<int64_t>(status.f_blocks * status.f_frsize);
  const auto free = static_cast<int64_t>(status.f_bavail * status.f_frsize);
  finding.value = format_bytes(free) + " free of " + format_bytes(size);
  if (free < kGiB) {
    finding.verdict = Health::kSlow;
    finding.advice = "Too small for all but small models. " + advice;
  }
  return finding;
}

Finding check_open_files() {
  struct rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  Finding finding{"open files", "at most " + std::to_string(limit.rlim_cur)};
  if (limit.rlim_cur < 1024) {
    finding.verdict = Health::kSlow;
    finding.advice = "Many ranks or data shards need more: `ulimit -n 4096`.";
  }
  return finding;
}

Finding check_gpus() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", ignored)) {
    std::ifstream file(entry.path() / "information");
    for (std::string line; std::getline(file, line);)
      if (line.rfind("Model:", 0) == 0) names.push_back(line.substr(line.find_first_not_of(" \t", 6)));
  }
  if (names.empty()) return {"GPUs", "none; shard.device = \"cpu\" needs none"};
  return {"GPUs", std::to_string(names.size()) + " x " + names.front()};
}

// Where a folder that does not exist yet would be made.
fs::path nearest_existing(fs::path folder) {
  std::error_code ignored;
  folder = fs::absolute(folder, ignored);
  while (!fs::exists(folder, ignored) && folder.has_parent_path() && folder != folder.parent_path())
    folder = folder.parent_path();
  return folder;
}

}  // namespace

Findings check_host() {
  return {check_cores(), check_instructions(), check_memory(), check_shared_memory(), check_open_files(), check_gpus()};
}

Finding check_disk(const fs::path& asked, int megabytes) {
  using Clock = std::chrono::steady_clock;
  const fs::path folder = nearest_existing(asked);
  Finding finding{"disk", folder.string()};
  const auto fail = [&](const std::string& advice) {
    finding.verdict = Health::kBroken;
    finding.failure = ErrorCode::kFileSystem;
    finding.advice = advice;
    return finding;
  };
  std::string name = (folder / ".fsdp-doctor-XXXXXX").string();
  const int file = mkstemp(name.data());
  if (file < 0)
    return fail(
        train::format_text("Nothing can be written there (%s). Choose another output.folder.", std::strerror(errno)));
  unlink(name.c_str());  // gone with the descriptor, however this ends
  const std::string block(static_cast<size_t>(kMiB), 'x');
  const auto begin = Clock::now();
  bool whole = true;
  for (int i = 0; i < megabytes && whole; ++i)
    whole = write(file, block.data(), block.size()) == static_cast<ssize_t>(kMiB);
  whole = whole && fdatasync(file) == 0;
  const int reason = errno;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  close(file);
  if (!whole)
    return fail(train::format_text("Writing %d MiB failed (%s). Free some space, or choose another output.folder.",
                                   megabytes, std::strerror(reason)));
  std::error_code ignored;
  const fs::space_info space = fs::space(folder, ignored);
  const double speed = megabytes / std::max(seconds, 1e-6);
  finding.value += train::format_text(": %.0f MiB/s written and flushed, %s free", speed,
                                      format_bytes(static_cast<int64_t>(space.available)).c_str());
  if (speed < 50 || space.available < static_cast<uintmax_t>(2 * kGiB)) {
    finding.verdict = Health::kSlow;
    finding.advice = speed < 50
                         ? "Checkpoints take long there: choose a faster disk for output.folder, save more rarely."
                         : "Checkpoints hold three times the weights in fp32: keep few (checkpoint.keep_last).";
  }
  return finding;
}

}  // namespace fsdp::app
