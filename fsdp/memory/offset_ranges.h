#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace fsdp {

// A set of offsets, kept as ranges [begin, end) that neither overlap nor touch.
class OffsetRanges {
 public:
  // Allocates only where the range touches no other one; if that fails (std::bad_alloc), the set is as it was.
  void add(int64_t begin, int64_t end);
  void remove(int64_t begin, int64_t end);
  // Where the first range of at least `bytes` begins; -1 if there is none.
  int64_t first_fit(int64_t bytes) const;
  // What of [begin, end) is not in the set, in order.
  std::vector<std::pair<int64_t, int64_t>> missing(int64_t begin, int64_t end) const;
  int64_t total() const;
  // Where the range begins that ends at `end`.
  std::optional<int64_t> begin_of_range_to(int64_t end) const;
  // Ends of the ranges, by begin.
  const std::map<int64_t, int64_t>& ends() const { return ends_; }

 private:
  std::map<int64_t, int64_t> ends_;
};

}  // namespace fsdp
