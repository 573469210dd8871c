#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdp::kernels {

// Where written bytes go. Past the cache, memory is not read before it is overwritten and nothing is pushed out of the
// cache, but the next reader waits for memory: for results larger than the caches (kernels ask for it, callers know).
enum class Stores { kCached, kPastCache };

// memcpy. Local; `to` and `from` may not overlap; other threads see the bytes after whatever tells them to look.
void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes, Stores stores);

}  // namespace fsdp::kernels
