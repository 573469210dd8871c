#include "kernels/stores.h"

#include <algorithm>
#include <cstring>

#include "kernels/simd.h"

namespace fsdp::kernels {
namespace {

// `to` at a multiple of 16 bytes, bytes a multiple of 64.
FSDP_SIMD_CLONES void copy_lines(std::byte* to, const std::byte* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += simd::kLineBytes) {
    simd::store_past_cache(reinterpret_cast<float*>(to + i), simd::load(reinterpret_cast<const float*>(from + i)));
  }
}

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes, Stores stores) {
  if (stores == Stores::kCached) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  const int64_t head = std::min(bytes, simd::bytes_before_line(to));
  const int64_t lines = (bytes - head) / simd::kLineBytes * simd::kLineBytes;
  std::memcpy(to, from, static_cast<size_t>(head));
  copy_lines(to + head, from + head, lines);
  std::memcpy(to + head + lines, from + head + lines, static_cast<size_t>(bytes - head - lines));
  simd::order_stores_past_cache();
}

}  // namespace fsdp::kernels
