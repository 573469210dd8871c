#include "kernels/raw/flat/sum_chunks.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/flat/sum_chunks.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

using simd::Float;

HWY_INLINE Float sum_at(const float* const* chunks, int64_t num_chunks, int64_t i) {
  Float sum = simd::load(chunks[0] + i);
  for (int64_t chunk = 1; chunk < num_chunks; ++chunk) sum = sum + simd::load(chunks[chunk] + i);
  return sum;
}

void sum_cached(float* to, const float* const* chunks, int64_t num_chunks, int64_t begin, int64_t end, bool add) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    const Float sum = sum_at(chunks, num_chunks, i);
    simd::store(to + i, add ? simd::load(to + i) + sum : sum);
  }
  for (; i < end; ++i) {
    float sum = chunks[0][i];
    for (int64_t chunk = 1; chunk < num_chunks; ++chunk) sum += chunks[chunk][i];
    to[i] = add ? to[i] + sum : sum;
  }
}

// to + begin at a multiple of 64 bytes, end - begin a multiple of 16.
void sum_past_cache(float* to, const float* const* chunks, int64_t num_chunks, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes) simd::store_past_cache(to + i, sum_at(chunks, num_chunks, i));
  hwy::FlushStream();  // seen by others no later than what is stored next
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(sum_cached);
HWY_EXPORT(sum_past_cache);

void sum_chunks(float* to, const float* const* chunks, int64_t num_chunks, int64_t count, bool add, Stores stores) {
  const auto cached = HWY_DYNAMIC_DISPATCH(sum_cached);
  if (add || stores == Stores::kCached) return cached(to, chunks, num_chunks, 0, count, add);
  const int64_t head = std::min<int64_t>(count, bytes_before_line(to) / static_cast<int64_t>(sizeof(float)));
  const int64_t lines_end = head + (count - head) / kLanes * kLanes;
  cached(to, chunks, num_chunks, 0, head, false);
  HWY_DYNAMIC_DISPATCH(sum_past_cache)(to, chunks, num_chunks, head, lines_end);
  cached(to, chunks, num_chunks, lines_end, count, false);
}

}  // namespace fsdp::kernels::raw
#endif
