#include "fsdp/layout/planner.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>

namespace fsdp::layout {

namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::invalid_argument invalid(const std::string& what, int64_t got, const std::string& expected) {
  return std::invalid_argument("[plan] " + what + ": got " + std::to_string(got) + ", expected " + expected + ".");
}

// a * b or a + b, kMax when it does not fit: larger than any buffer, so it compares as "does not fit".
int64_t saturating_mul(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? kMax : result;
}
int64_t saturating_add(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_add_overflow(a, b, &result) ? kMax : result;
}

int64_t saturating_lcm(int64_t a, int64_t b) { return saturating_mul(a / std::gcd(a, b), b); }

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

int64_t round_up(int64_t a, int64_t multiple) { return saturating_mul(ceil_div(a, multiple), multiple); }

// One tensor with what the scan asks about it again and again.
struct Item {
  int64_t numel;
  int64_t granule;
  int64_t start_step;  // lcm(granule, align): distances from a start to the boundary it crosses
};

// The search for the smallest shard, for fixed tensors, order, number of shards and alignment.
class Scan {
 public:
  Scan(std::span<const TensorSpec> tensors, int64_t num_shards, int64_t align)
      : num_shards_(num_shards), align_(align) {
    for (const TensorSpec& tensor : tensors) {
      // A granule of the whole tensor or more only says "never cut".
      const int64_t granule = std::min(tensor.granule, std::max<int64_t>(tensor.numel, 1));
      items_.push_back({tensor.numel, granule, saturating_lcm(granule, align)});
      sum_ += tensor.numel;
      if (granule > 1 && granule == tensor.numel) lowest_ = std::max(lowest_, tensor.numel);
    }
    lowest_ = round_up(std::max(lowest_, ceil_div(sum_, num_shards)), align);
  }

  // The smallest feasible shard; `offsets` receives the starts.
  int64_t run(std::vector<int64_t>* offsets) const {
    int64_t shard = next_possible(lowest_);
    int64_t retry = 0;
    while (!place_all(shard, offsets, &retry)) shard = next_possible(round_up(std::max(shard + 1, retry), align_));
    return shard;
  }

 private:
  // The smallest size >= `shard` that the tensors longer than two shards allow: such a tensor has two boundaries inside
  // it, one shard apart, so its granule must divide the shard.
  int64_t next_possible(int64_t shard) const {
    while (true) {
      int64_t step = align_;
      int64_t fewer = kMax;  // from this size on, one of those tensors is no longer that long
      for (const Item& item : items_) {
        if (item.granule == 1 || item.numel <= saturating_mul(shard, 2)) continue;
        step = saturating_lcm(step, item.granule);
        fewer = std::min(fewer, round_up(ceil_div(item.numel, 2), align_));
      }
      const int64_t next = std::min(round_up(shard, step), fewer);
      if (next == shard) return shard;
      shard = next;
    }
  }

  // A position that says how it moves with the size of a shard.
  struct Position {
    int64_t shards;
    int64_t rest;
    int64_t at(int64_t shard) const { return shards * shard + rest; }
  };

  // Places every tensor as early as possible. On failure `retry` is a larger size below which no size can succeed.
  bool place_all(int64_t shard, std::vector<int64_t>* offsets, int64_t* retry) const {
    int64_t remaining = sum_;
    Position cursor = {0, 0};
    *retry = kMax;
    offsets->clear();
    for (const Item& item : items_) {
      cursor.rest = round_up(cursor.rest, align_);
      const std::optional<int64_t> start = earliest_start(item, cursor.at(shard), shard);
      *retry = std::min(*retry, next_change(item, cursor, start, shard));
      if (!start) return false;
      if (*start != cursor.at(shard)) cursor = {*start / shard, *start % shard};
      if (*start + remaining > shard * num_shards_) {
        const int64_t shards_left = num_shards_ - cursor.shards;
        if (shards_left > 0) *retry = std::min(*retry, ceil_div(cursor.rest + remaining, shards_left));
        return false;
      }
      offsets->push_back(*start);
      remaining -= item.numel;
      cursor.rest += item.numel;
    }
    return true;
  }

  // The smallest size above `shard` for which this tensor, with the cursor at the same Position, may be placed
  // otherwise. It makes whole-tensor granules fast: what fails for one size fails for all sizes with the same
  // decisions.
  int64_t next_change(const Item& item, Position cursor, std::optional<int64_t> start, int64_t shard) const {
    if (item.start_step == align_) return kMax;  // can be cut wherever a boundary may lie: never moves
    const int64_t windows = cursor.rest / shard + 1;
    const int64_t boundary = (cursor.shards + windows) * shard;
    // From this size on, the boundary before this one lies behind the cursor.
    const int64_t other_window = windows > 1 ? cursor.rest / (windows - 1) + 1 : kMax;
    if (start == cursor.at(shard) && *start + item.numel <= boundary) return other_window;
    if (start == boundary && item.granule == item.numel) {
      return std::min(other_window, ceil_div(cursor.rest + item.numel, windows));
    }
    return shard + 1;
  }

  // The first legal start >= cursor. Taking it is optimal: a later end of one tensor never lets the next one end
  // earlier.
  static std::optional<int64_t> earliest_start(const Item& item, int64_t cursor, int64_t shard) {
    const int64_t boundary = (cursor / shard + 1) * shard;
    if (const auto start = start_before(item, cursor, boundary, shard)) return start;
    // All windows between boundaries look alike; what does not fit a whole one fits none.
    return start_before(item, boundary, boundary + shard, shard);
  }

  // The first legal start in [cursor, boundary), where `boundary` is the next one after the cursor.
  static std::optional<int64_t> start_before(const Item& item, int64_t cursor, int64_t boundary, int64_t shard) {
    if (item.numel <= boundary - cursor) return cursor;
    const int64_t start = boundary - (boundary - cursor) / item.start_step * item.start_step;
    if (start == boundary) return std::nullopt;
    const bool cut_once = item.numel - (boundary - start) <= shard;
    if (cut_once || shard % item.granule == 0) return start;
    return std::nullopt;
  }

  std::vector<Item> items_;
  int64_t num_shards_;
  int64_t align_;
  int64_t sum_ = 0;
  int64_t lowest_ = 0;
};

void check_arguments(std::span<const TensorSpec> tensors, int64_t num_shards, int64_t align) {
  if (num_shards < 1) throw invalid("num_shards", num_shards, "at least 1");
  if (align < 1) throw invalid("align_elements", align, "at least 1");
  int64_t sum = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string name = "tensors[" + std::to_string(i) + "]";
    if (tensors[i].numel < 0) throw invalid(name + ".numel", tensors[i].numel, "at least 0");
    if (tensors[i].granule < 1) throw invalid(name + ".granule", tensors[i].granule, "at least 1");
    sum = saturating_add(sum, round_up(tensors[i].numel, align));
  }
  // One shard of that size always holds everything, so the scan ends and no position overflows.
  if (saturating_mul(saturating_add(sum, align), saturating_add(num_shards, 1)) >= kMax / 4) {
    throw invalid("numel of all tensors times num_shards", sum, "less than 2^61");
  }
}

}  // namespace

int64_t granule_of(Granularity granularity, std::span<const int64_t> shape, int64_t block) {
  int64_t row = 1;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] < 0) throw invalid("shape[" + std::to_string(dim) + "]", shape[dim], "at least 0");
    if (dim > 0) row = saturating_mul(row, shape[dim]);
  }
  switch (granularity) {
    case Granularity::kElement:
      return 1;
    case Granularity::kRow:
      return std::max<int64_t>(row, 1);
    case Granularity::kBlock:
      if (block < 1) throw invalid("block", block, "at least 1");
      return block;
    case Granularity::kTensor:
      return std::max<int64_t>(shape.empty() ? 1 : saturating_mul(row, shape[0]), 1);
  }
  throw invalid("granularity", static_cast<int64_t>(granularity), "one of the enumerators");
}

int64_t FlatLayout::padding() const {
  return total_numel() - std::accumulate(numels.begin(), numels.end(), int64_t{0});
}

double FlatLayout::padding_percent() const {
  const int64_t used = total_numel() - padding();
  return used == 0 ? 0.0 : 100.0 * static_cast<double>(padding()) / static_cast<double>(used);
}

Range FlatLayout::owned(int64_t shard) const {
  if (shard < 0 || shard >= num_shards) throw invalid("shard", shard, "0 to " + std::to_string(num_shards - 1));
  return {shard * shard_numel, (shard + 1) * shard_numel};
}

Range FlatLayout::slice_of(int64_t shard, size_t tensor) const {
  if (tensor >= offsets.size()) {
    throw invalid("tensor", static_cast<int64_t>(tensor), "less than " + std::to_string(offsets.size()));
  }
  const Range mine = owned(shard);
  const int64_t begin = std::max(mine.begin, offsets[tensor]);
  const int64_t end = std::min(mine.end, offsets[tensor] + numels[tensor]);
  return begin < end ? Range{begin - offsets[tensor], end - offsets[tensor]} : Range{};
}

FlatLayout FlatLayout::coarsened(int64_t factor) const {
  if (factor < 1 || num_shards % factor != 0) {
    throw std::invalid_argument("[layout] coarsened: got factor " + std::to_string(factor) + " for " +
                                std::to_string(num_shards) + " shards, expected a divisor.");
  }
  return {offsets, numels, shard_numel * factor, num_shards / factor};
}

FlatLayout plan(std::span<const TensorSpec> tensors, int64_t num_shards, int64_t align_elements) {
  check_arguments(tensors, num_shards, align_elements);
  FlatLayout layout;
  layout.num_shards = num_shards;
  int64_t sum = 0;
  for (const TensorSpec& tensor : tensors) {
    layout.numels.push_back(tensor.numel);
    sum += tensor.numel;
  }
  if (sum == 0) {
    layout.offsets.assign(tensors.size(), 0);
  } else {
    layout.shard_numel = Scan(tensors, num_shards, align_elements).run(&layout.offsets);
  }
  return layout;
}

uint64_t digest(const FlatLayout& layout) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](int64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ (static_cast<uint64_t>(value) >> (8 * byte) & 0xff)) * 0x100000001b3;
    }
  };
  add(layout.num_shards);
  add(layout.shard_numel);
  add(static_cast<int64_t>(layout.offsets.size()));
  for (int64_t offset : layout.offsets) add(offset);
  for (int64_t numel : layout.numels) add(numel);
  return hash;
}

}  // namespace fsdp::layout
