#include "kernels/raw/flat/sum_chunks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/flat/sum_chunks.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

using simd::Float;

// Each half is a tree of its own; the first has a power of two of the chunks.
template <int kCount, class Load>
HWY_INLINE Float sum_of(const float* const* chunks, const Load& load) {
  if constexpr (kCount == 1) {
    return load(chunks[0]);
  } else {
    constexpr int kFirst = kCount <= 2 ? 1 : kCount <= 4 ? 2 : 4;
    return sum_of<kFirst>(chunks, load) + sum_of<kCount - kFirst>(chunks + kFirst, load);
  }
}

// body(count) with a count that the compiler knows, of 1 to 8.
template <class Body>
HWY_INLINE auto with_count(int64_t count, const Body& body) {
  switch (count) {
    case 1:
      return body(std::integral_constant<int, 1>());
    case 2:
      return body(std::integral_constant<int, 2>());
    case 3:
      return body(std::integral_constant<int, 3>());
    case 4:
      return body(std::integral_constant<int, 4>());
    case 5:
      return body(std::integral_constant<int, 5>());
    case 6:
      return body(std::integral_constant<int, 6>());
    case 7:
      return body(std::integral_constant<int, 7>());
    default:
      return body(std::integral_constant<int, 8>());
  }
}

template <class Load>
Float sum_of_many(const float* const* chunks, int64_t num_chunks, const Load& load) {
  if (num_chunks <= 8)
    return with_count(num_chunks, [&](auto count) HWY_ATTR { return sum_of<count()>(chunks, load); });
  const auto first = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_chunks - 1)));
  return sum_of_many(chunks, first, load) + sum_of_many(chunks + first, num_chunks - first, load);
}

// Whole vectors in [begin, end), of `kCount` chunks whose addresses stay in registers.
template <int kCount, class Store>
void sum_few(const float* const* chunks, int64_t begin, int64_t end, const Store& store) {
  std::array<const float*, kCount> from;
  std::copy_n(chunks, kCount, from.begin());
  for (int64_t i = begin; i < end; i += kLanes) {
    const auto load = [i](const float* chunk) HWY_ATTR { return simd::load(chunk + i); };
    store(i, sum_of<kCount>(from.data(), load));
  }
}

template <class Store>
void sum_vectors(const float* const* chunks, int64_t num_chunks, int64_t begin, int64_t end, const Store& store) {
  if (num_chunks <= 8)
    return with_count(num_chunks, [&](auto count) HWY_ATTR { sum_few<count()>(chunks, begin, end, store); });
  for (int64_t i = begin; i < end; i += kLanes) {
    const auto load = [i](const float* chunk) HWY_ATTR { return simd::load(chunk + i); };
    store(i, sum_of_many(chunks, num_chunks, load));
  }
}

HWY_INLINE Float sum_of_last(const float* const* chunks, int64_t num_chunks, int64_t i, int64_t count) {
  const auto load = [=](const float* chunk) HWY_ATTR { return simd::load_first(chunk + i, count); };
  return sum_of_many(chunks, num_chunks, load);
}

void sum_cached(float* to, const float* const* chunks, int64_t num_chunks, int64_t begin, int64_t end, bool add) {
  const int64_t last = end - (end - begin) % kLanes;
  if (add) {
    const auto add_to = [to](int64_t i, const Float& sum) HWY_ATTR { simd::store(to + i, simd::load(to + i) + sum); };
    sum_vectors(chunks, num_chunks, begin, last, add_to);
  } else {
    const auto set = [to](int64_t i, const Float& sum) HWY_ATTR { simd::store(to + i, sum); };
    sum_vectors(chunks, num_chunks, begin, last, set);
  }
  if (last == end) return;
  const Float sum = sum_of_last(chunks, num_chunks, last, end - last);
  simd::store_first(to + last, add ? simd::load_first(to + last, end - last) + sum : sum, end - last);
}

// to + begin at a multiple of 64 bytes, end - begin a multiple of 16.
void sum_past_cache(float* to, const float* const* chunks, int64_t num_chunks, int64_t begin, int64_t end) {
  const auto set = [to](int64_t i, const Float& sum) HWY_ATTR { simd::store_past_cache(to + i, sum); };
  sum_vectors(chunks, num_chunks, begin, end, set);
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
