#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace fsdp::schedule {

// Forward or backward half of a microbatch.
enum class Pass { kForward, kBackward };

struct StaticOrderOptions {
  int forward_depth = 1;  // how many units ahead are named at most, in a forward; 0 turns prefetch off
  int backward_depth = 1;
  // Bytes that the units named by ahead() may have together.
  int64_t max_bytes = std::numeric_limits<int64_t>::max();
  // Visits a recording may have. A longer pass (forwards that never end in a backward) is followed but not learnt from.
  size_t max_recorded = size_t{1} << 16;
};

// Who goes next, for prefetch: learns the order in which units are visited and predicts it in later passes. Units are
// small numbers >= 0 given by the caller. An order belongs to (pass, first unit visited), so two roots that take turns
// each keep theirs. A wrong prediction costs a useless gather, never a wrong result. Local; not thread-safe. After:
// DeepSpeed's prefetch coordinator (record, then follow); FSDP1's _ExecOrderData.
class StaticOrder {
 public:
  explicit StaticOrder(StaticOrderOptions options = {});

  // Starts a pass. A pass that is still open was interrupted: its recording is dropped.
  void begin_pass(Pass pass);

  // The computation moved on to `unit`. Finds the place in the known order: where it is expected, else further on, else
  // from the start, else nowhere until a later visit is found again. Outside a pass only digest() hears of it.
  void visit(int unit);

  // Ends the pass; its recording becomes the order for its key. Returns true if that replaced another order. A pass
  // that is the known order several times over (forwards in a row) or longer than max_recorded changes nothing.
  bool end_pass();

  // The next units after the place of the last visit, nearest first, without repeats and without the unit visited last;
  // looks at most the pass's depth ahead. Empty while the order or the place in it is unknown. `unit_bytes[u]`, if
  // given, are the bytes that gathering unit u takes (0 for one that is unsharded already); the list stops where
  // max_bytes would be passed. Before the first recorded backward, backward follows the reverse of the forward just
  // recorded.
  std::vector<int> ahead(std::span<const int64_t> unit_bytes = {}) const;

  // How often a known order was replaced by another.
  int64_t changes() const { return changes_; }

  // Hash of all visits and passes since reset_digest(): equal on ranks that did the same in the same order.
  uint64_t digest() const { return digest_; }
  void reset_digest();

 private:
  using Order = std::vector<int>;
  using Key = std::pair<Pass, int>;  // pass and its first unit

  void choose_order(int first_unit);
  void advance(int unit);
  void add_to_digest(uint64_t value);

  StaticOrderOptions options_;
  std::map<Key, Order> orders_;
  Order last_forward_;  // the forward recorded last; its reverse stands in for a backward never seen
  bool in_pass_ = false;
  Pass pass_ = Pass::kForward;
  Order recording_;
  bool too_long_ = false;
  Order current_;        // the order this pass follows; a copy, so that nothing changes under it
  size_t position_ = 0;  // index in current_ of the visit that is expected next
  bool found_ = false;   // whether the last visit was found
  int last_unit_ = -1;
  int64_t changes_ = 0;
  uint64_t digest_ = 0;
};

}  // namespace fsdp::schedule
