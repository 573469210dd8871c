#include "kernels/raw/cpu_isa.h"

#include <hwy/highway.h>
#include <hwy/targets.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "kernels/raw/bf16_pairs.h"

namespace fsdp::kernels::raw {
namespace {

struct Entry {
  CpuIsa isa;
  std::string_view name;
  int64_t target;
};

// The plainest first.
constexpr std::array kEntries = {
    Entry{CpuIsa::kScalar, "scalar", HWY_EMU128 | HWY_SCALAR},
    Entry{CpuIsa::kSse4, "sse4", HWY_SSE4},
    Entry{CpuIsa::kAvx2, "avx2", HWY_AVX2},
    Entry{CpuIsa::kAvx512, "avx512", HWY_AVX3},
    Entry{CpuIsa::kNeon, "neon", HWY_NEON},
};

// Compiled, whatever the processor has. On Arm NEON is the baseline: there is no plainer set.
constexpr int64_t kCompiled = HWY_TARGETS;

// Asked once: each question is a trap to the host of a virtual machine, and makes Highway choose anew.
int64_t processor_targets() {
  static const int64_t targets = hwy::SupportedTargets();
  return targets;
}

std::atomic<CpuIsa>& in_use() {
  static std::atomic<CpuIsa> isa(available_cpu_isas().back());
  return isa;
}

}  // namespace

std::string_view name_of(CpuIsa isa) {
  for (const Entry& entry : kEntries)
    if (entry.isa == isa) return entry.name;
  return "unknown";
}

std::optional<CpuIsa> find_cpu_isa(std::string_view name) {
  for (const Entry& entry : kEntries)
    if (entry.name == name) return entry.isa;
  return std::nullopt;
}

std::vector<CpuIsa> available_cpu_isas() {
  static const std::vector<CpuIsa> available = [] {
    std::vector<CpuIsa> found;
    for (const Entry& entry : kEntries)
      if ((processor_targets() & kCompiled & entry.target) != 0) found.push_back(entry.isa);
    return found;
  }();
  return available;
}

CpuIsa cpu_isa() { return in_use(); }

bool is_of_intel() {
#if HWY_ARCH_X86
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

int64_t second_level_cache() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  static const int64_t bytes = std::max<int64_t>(0, sysconf(_SC_LEVEL2_CACHE_SIZE));
  return bytes;
#else
  return 0;
#endif
}

bool has_bf16_pairs() {
#if FSDP_HAS_BF16_PAIRS
  static const bool has =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512bf16");
  return has && cpu_isa() == CpuIsa::kAvx512;
#else
  return false;
#endif
}

void hold_cpu_isa(CpuIsa isa) {
  int64_t better = 0;
  for (const Entry& entry : kEntries)
    if (entry.isa > isa) better |= entry.target;
  // Not DisableTargets(): what that rules out is chosen again as soon as anyone asks for SupportedTargets().
  hwy::SetSupportedTargetsForTest(processor_targets() & ~better);
  in_use() = isa;
}

void release_cpu_isa() {
  hwy::SetSupportedTargetsForTest(0);
  in_use() = available_cpu_isas().back();
}

}  // namespace fsdp::kernels::raw
