#pragma once

#include <cstdint>

namespace fsdp {

// Memory of CPU tensors that is kept when they free it and given to the next ones: what a step allocates, the next one
// finds in place. Without it each step gets pages from the system and clears them, which on a CPU costs several times
// more than to copy them. Process-wide and thread-safe.
struct HostCacheStats {
  int64_t in_use_bytes = 0;       // by tensors
  int64_t peak_in_use_bytes = 0;  // since the start or reset_host_cache_peak()
  int64_t held_bytes = 0;         // those, and what is kept for the next
  int64_t peak_held_bytes = 0;
  int64_t allocations = 0;  // that the cache served
  int64_t growths = 0;      // of them, those that needed memory from the system
};

// From now on the cache serves tensors of at least kHostCacheThreshold bytes; smaller ones stay with the C library, as
// do tensors that exist. Through c10's allocator seam, so it serves everything that asks LibTorch for CPU memory.
// Returns whether it is on: a system without address space to spare, and builds with sanitizers, have none.
bool enable_host_cache();
// LibTorch gets back the allocator that it had. Tensors that the cache served keep their memory.
void disable_host_cache();

inline constexpr int64_t kHostCacheThreshold = int64_t{32} << 10;

HostCacheStats host_cache_stats();
void reset_host_cache_peak();
// Returns what is kept for the next tensors to the system: so many bytes.
int64_t trim_host_cache();

}  // namespace fsdp
