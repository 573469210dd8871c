// Which instruction set the kernels of this folder use: the best that the processor has, or one that they are held to.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace fsdp::kernels::raw {

enum class CpuIsa : uint8_t { kScalar, kSse4, kAvx2, kAvx512, kNeon };

// "scalar", "sse4", "avx2", "avx512", "neon".
std::string_view name_of(CpuIsa isa);
std::optional<CpuIsa> find_cpu_isa(std::string_view name);

// Those that were compiled and that this processor has, the plainest first.
std::vector<CpuIsa> available_cpu_isas();

// The one in use.
CpuIsa cpu_isa();

// From now on the kernels use this one, which must be available. What AVX-512 has beyond its base, products of bf16
// pairs and tile registers (AMX), is used with kAvx512 alone. Local; not while kernels run.
void hold_cpu_isa(CpuIsa isa);

// Whether Intel made the processor: some libraries can be held to a set on such alone.
bool is_of_intel();

// Bytes of the second-level cache of a core; 0 where the system does not say.
int64_t second_level_cache();

// Whether the kernels multiply pairs of bf16 (AVX512_BF16).
bool has_bf16_pairs();

// Back to the best that the processor has.
void release_cpu_isa();

}  // namespace fsdp::kernels::raw
