// Where written bytes go.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdp::kernels::raw {

// Past the cache, memory is not read before it is overwritten and nothing is pushed out of the cache, but the next
// reader waits for memory: for results larger than the caches (kernels ask for it, callers know).
enum class Stores { kCached, kPastCache };

// memcpy. Local; `to` and `from` may not overlap; other threads see the bytes after whatever tells them to look.
void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes, Stores stores);

inline constexpr int64_t kLineBytes = 64;

// Up to the next line of the cache.
inline int64_t bytes_before_line(const void* address) {
  return static_cast<int64_t>(-reinterpret_cast<uintptr_t>(address) & (kLineBytes - 1));
}

}  // namespace fsdp::kernels::raw
