#include "fsdp/schedule/static_order.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace fsdp::schedule {

namespace {

constexpr uint64_t kHashStart = 0xcbf29ce484222325;  // FNV-1a
constexpr uint64_t kHashFactor = 0x100000001b3;

// Whether `recording` is `order`, once or several times in a row.
bool repeats(const std::vector<int>& recording, const std::vector<int>& order) {
  if (order.empty() || recording.size() % order.size() != 0) return false;
  for (size_t i = 0; i < recording.size(); ++i) {
    if (recording[i] != order[i % order.size()]) return false;
  }
  return true;
}

}  // namespace

StaticOrder::StaticOrder(StaticOrderOptions options) : options_(options) {
  if (options.forward_depth < 0 || options.backward_depth < 0 || options.max_bytes < 0) {
    throw std::invalid_argument("[StaticOrder] depths and max_bytes: got " + std::to_string(options.forward_depth) +
                                ", " + std::to_string(options.backward_depth) + " and " +
                                std::to_string(options.max_bytes) + ", expected at least 0.");
  }
  reset_digest();
}

void StaticOrder::begin_pass(Pass pass) {
  in_pass_ = true;
  pass_ = pass;
  recording_.clear();
  too_long_ = false;
  current_.clear();
  position_ = 0;
  found_ = false;
  last_unit_ = -1;
  add_to_digest(pass == Pass::kForward ? 0xf0 : 0xb0);
}

void StaticOrder::visit(int unit) {
  if (unit < 0) throw std::invalid_argument("[visit] unit: got " + std::to_string(unit) + ", expected at least 0.");
  add_to_digest(0x100 + static_cast<uint64_t>(unit));
  if (!in_pass_) return;
  if (recording_.empty()) choose_order(unit);
  if (recording_.size() < options_.max_recorded) {
    recording_.push_back(unit);
  } else {
    too_long_ = true;
  }
  advance(unit);
  last_unit_ = unit;
}

bool StaticOrder::end_pass() {
  if (!in_pass_) return false;
  in_pass_ = false;
  found_ = false;
  if (recording_.empty() || too_long_) {
    if (pass_ == Pass::kForward) last_forward_.clear();
    return false;
  }
  Order& order = orders_[{pass_, recording_.front()}];
  if (pass_ == Pass::kForward) last_forward_ = recording_;
  if (repeats(recording_, order)) return false;
  const bool replaced = !order.empty();
  order = recording_;
  changes_ += replaced ? 1 : 0;
  return replaced;
}

std::vector<int> StaticOrder::ahead(std::span<const int64_t> unit_bytes) const {
  std::vector<int> units;
  if (!found_) return units;
  const int depth = pass_ == Pass::kForward ? options_.forward_depth : options_.backward_depth;
  const size_t end = std::min(current_.size(), position_ + static_cast<size_t>(depth));
  int64_t bytes_left = options_.max_bytes;
  for (size_t i = position_; i < end; ++i) {
    const int unit = current_[i];
    if (unit == last_unit_ || std::find(units.begin(), units.end(), unit) != units.end()) continue;
    const int64_t bytes = static_cast<size_t>(unit) < unit_bytes.size() ? unit_bytes[static_cast<size_t>(unit)] : 0;
    if (bytes > bytes_left) break;
    bytes_left -= bytes;
    units.push_back(unit);
  }
  return units;
}

void StaticOrder::reset_digest() { digest_ = kHashStart; }

void StaticOrder::choose_order(int first_unit) {
  if (const auto known = orders_.find({pass_, first_unit}); known != orders_.end()) {
    current_ = known->second;
  } else if (pass_ == Pass::kBackward) {
    current_.assign(last_forward_.rbegin(), last_forward_.rend());
  }
}

void StaticOrder::advance(int unit) {
  const auto expected = current_.begin() + static_cast<std::ptrdiff_t>(position_);
  auto place = std::find(expected, current_.end(), unit);
  if (place == current_.end()) {
    place = std::find(current_.begin(), expected, unit);
    if (place == expected) place = current_.end();
  }
  found_ = place != current_.end();
  if (found_) position_ = static_cast<size_t>(place - current_.begin()) + 1;
}

void StaticOrder::add_to_digest(uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) digest_ = (digest_ ^ (value >> (8 * byte) & 0xff)) * kHashFactor;
}

}  // namespace fsdp::schedule
