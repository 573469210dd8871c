#include "kernels/raw/flat/stores.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/flat/stores.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

// `to` at a multiple of 64 bytes, and `bytes` one too.
void copy_lines(std::byte* to, const std::byte* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kLineBytes)
    simd::store_past_cache(reinterpret_cast<float*>(to + i), simd::load(reinterpret_cast<const float*>(from + i)));
  hwy::FlushStream();  // seen by others no later than what is stored next
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(copy_lines);

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes, Stores stores) {
  if (stores == Stores::kCached) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  const int64_t head = std::min(bytes, bytes_before_line(to));
  const int64_t lines = (bytes - head) / kLineBytes * kLineBytes;
  std::memcpy(to, from, static_cast<size_t>(head));
  HWY_DYNAMIC_DISPATCH(copy_lines)(to + head, from + head, lines);
  std::memcpy(to + head + lines, from + head + lines, static_cast<size_t>(bytes - head - lines));
}

}  // namespace fsdp::kernels::raw
#endif
