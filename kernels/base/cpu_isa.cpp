#include "kernels/base/cpu_isa.h"

#include <ATen/Context.h>

#include <cstdlib>
#include <string_view>

#include "kernels/raw/cpu_isa.h"
#include "kernels/raw/products/amx.h"

namespace fsdp::kernels {
namespace {

using raw::CpuIsa;

// In the words of each library.
struct LibrarySets {
  const char *aten, *onednn, *mkl;
};

LibrarySets sets_below(CpuIsa isa) {
  if (isa == CpuIsa::kAvx2) return {"avx2", "AVX2", "AVX2"};
  return {"default", "SSE41", "SSE4_2"};
}

void hold_libraries(CpuIsa isa) {
  if (isa == CpuIsa::kAvx512 || isa == CpuIsa::kNeon) return;
  const LibrarySets sets = sets_below(isa);
  setenv("ATEN_CPU_CAPABILITY", sets.aten, /*overwrite=*/0);
  setenv("ONEDNN_MAX_CPU_ISA", sets.onednn, /*overwrite=*/0);
  setenv("MKL_ENABLE_INSTRUCTIONS", sets.mkl, /*overwrite=*/0);
  // Which is heeded on processors of Intel; others have one path that is plainer than AVX2's.
  if (isa != CpuIsa::kAvx2 && !raw::is_of_intel()) setenv("MKL_CBWR", "COMPATIBLE", /*overwrite=*/0);
}

std::string list_available() {
  std::string list = "native";
  for (const CpuIsa isa : raw::available_cpu_isas()) list += ", " + std::string(raw::name_of(isa));
  return list;
}

// What FSDP_CPU_ISA asks for; none: native.
struct Setting {
  std::optional<CpuIsa> isa;
  std::optional<std::string> mistake;
};

Setting read_setting() {
  const char* value = std::getenv("FSDP_CPU_ISA");
  if (value == nullptr || std::string_view(value).empty() || std::string_view(value) == "native") return {};
  const std::optional<CpuIsa> wanted = raw::find_cpu_isa(value);
  for (const CpuIsa isa : raw::available_cpu_isas())
    if (isa == wanted) return {wanted, std::nullopt};
  return {std::nullopt, "[FSDP_CPU_ISA] instruction set: got \"" + std::string(value) + "\", expected one of " +
                            list_available() + (wanted ? " (this processor has no others)" : "") +
                            ". Set it to one of these, or unset it."};
}

const Setting& setting() {
  static const Setting read = [] {
    Setting found = read_setting();
    if (found.isa) {
      hold_libraries(*found.isa);
      raw::hold_cpu_isa(*found.isa);
    }
    return found;
  }();
  return read;
}

// Before main(), and so before the libraries look at the processor.
[[maybe_unused]] const bool kIsReadAtLoad = (setting(), true);

}  // namespace

std::optional<std::string> cpu_isa_mistake() { return setting().mistake; }

std::string describe_cpu_isa() {
  std::string text(raw::name_of(raw::cpu_isa()));
  if (raw::has_bf16_pairs()) text += raw::amx::is_available() ? " with bf16 and tiles" : " with bf16";
  return setting().isa ? text + ", held by FSDP_CPU_ISA" : text;
}

bool multiplies_bf16() { return raw::has_bf16_pairs(); }

bool prefers_mkl() { return raw::is_of_intel() && raw::cpu_isa() >= CpuIsa::kSse4 && at::hasMKL(); }

}  // namespace fsdp::kernels
