// FSDP_CPU_ISA = native | avx512 | avx2 | sse4 | scalar: holds the kernels of this folder, and LibTorch's operators,
// oneDNN and MKL under them, to an instruction set, for tests, benchmarks and comparisons. Read when this library is
// loaded, before any of them has looked at the processor. A library's own variable, where it is set, stays as it is
// (ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA, MKL_ENABLE_INSTRUCTIONS); those libraries have no set without vectors, so
// "scalar" holds them to their plainest.
#pragma once

#include <optional>
#include <string>

namespace fsdp::kernels {

// What is wrong with FSDP_CPU_ISA, which then holds nothing; none where it is unset or right. Programs refuse to run
// with it: fsdp::init() throws it.
std::optional<std::string> cpu_isa_mistake();

// The set in use, for people: "avx512 with bf16 and tiles", "avx2, held by FSDP_CPU_ISA".
std::string describe_cpu_isa();

// Whether matrix products of bf16 are faster than those of fp32 here: where the processor multiplies bf16.
bool multiplies_bf16();

// Whether MKL is to multiply fp32 matrices, as the fastest: on processors of Intel, for which it has paths of their
// own. Elsewhere oneDNN and the tiles of this folder are used.
bool prefers_mkl();

}  // namespace fsdp::kernels
