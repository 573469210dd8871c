#include "fsdp/memory/offset_ranges.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace fsdp {

void OffsetRanges::add(int64_t begin, int64_t end) {
  if (begin >= end) return;
  auto range = ends_.upper_bound(begin);
  if (range != ends_.begin() && std::prev(range)->second >= begin) {
    --range;
  } else if (range != ends_.end() && range->first <= end) {
    auto node = ends_.extract(range);
    node.key() = begin;
    range = ends_.insert(std::move(node)).position;
  } else {
    range = ends_.emplace_hint(range, begin, end);
  }
  range->second = std::max(range->second, end);
  for (auto next = std::next(range); next != ends_.end() && next->first <= range->second; next = ends_.erase(next)) {
    range->second = std::max(range->second, next->second);
  }
}

void OffsetRanges::remove(int64_t begin, int64_t end) {
  if (begin >= end) return;
  auto range = ends_.upper_bound(begin);
  if (range != ends_.begin()) --range;
  while (range != ends_.end() && range->first < end) {
    const auto [first, last] = *range;
    if (last <= begin) {
      ++range;
      continue;
    }
    range = ends_.erase(range);
    if (first < begin) ends_.emplace_hint(range, first, begin);
    if (last > end) ends_.emplace_hint(range, end, last);
  }
}

int64_t OffsetRanges::first_fit(int64_t bytes) const {
  for (const auto& [begin, end] : ends_) {
    if (end - begin >= bytes) return begin;
  }
  return -1;
}

std::vector<std::pair<int64_t, int64_t>> OffsetRanges::missing(int64_t begin, int64_t end) const {
  std::vector<std::pair<int64_t, int64_t>> gaps;
  auto range = ends_.upper_bound(begin);
  if (range != ends_.begin()) --range;
  for (; range != ends_.end() && range->first < end; ++range) {
    if (range->second <= begin) continue;
    if (range->first > begin) gaps.emplace_back(begin, range->first);
    begin = range->second;
  }
  if (begin < end) gaps.emplace_back(begin, end);
  return gaps;
}

int64_t OffsetRanges::total() const {
  int64_t sum = 0;
  for (const auto& [begin, end] : ends_) sum += end - begin;
  return sum;
}

std::optional<int64_t> OffsetRanges::begin_of_range_to(int64_t end) const {
  const auto next = ends_.lower_bound(end);
  if (next == ends_.begin() || std::prev(next)->second != end) return std::nullopt;
  return std::prev(next)->first;
}

}  // namespace fsdp
