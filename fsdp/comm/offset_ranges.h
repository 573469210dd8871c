#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace fsdp::comm {

// A set of offsets, kept as ranges [begin, end) that neither overlap nor touch.
class OffsetRanges {
 public:
  void add(int64_t begin, int64_t end);
  void remove(int64_t begin, int64_t end);
  // Where the first range of at least `bytes` begins; -1 if there is none.
  int64_t first_fit(int64_t bytes) const;
  // What of [begin, end) is not in the set, in order.
  std::vector<std::pair<int64_t, int64_t>> missing(int64_t begin, int64_t end) const;
  int64_t total() const;

 private:
  std::map<int64_t, int64_t> ends_;  // by begin
};

}  // namespace fsdp::comm
