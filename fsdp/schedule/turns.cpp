#include "fsdp/schedule/turns.h"

#include <algorithm>

namespace fsdp::schedule {

namespace {

bool contains(std::span<const int> units, int unit) {
  return std::find(units.begin(), units.end(), unit) != units.end();
}

}  // namespace

Turns::Turns(const Schedule& schedule, UnitWeights& weights)
    : schedule_(schedule),
      weights_(weights),
      order_({.forward_depth = schedule.depth_forward(),
              .backward_depth = schedule.depth_backward(),
              .max_bytes = schedule.max_bytes}) {}

int Turns::add_unit(int parent) {
  units_.emplace_back().parent = parent;
  return static_cast<int>(units_.size()) - 1;
}

void Turns::remove_unit(int unit) {
  note_reshard(unit);
  for (Unit& other : units_) {
    if (other.parent == unit) other.parent = kNobody;
  }
  at(unit) = {};
}

// ---- passes

void Turns::begin_forward() {
  forward_open_ = true;
  pass_ = Pass::kForward;
  order_.begin_pass(pass_);
  for (Unit& unit : units_) unit.gathers_in_pass = 0;
}

void Turns::begin_backward() {
  leave();
  if (forward_open_) {
    note_reused_units();
    order_.end_pass();
    forward_open_ = false;
  }
  pass_ = Pass::kBackward;
  order_.begin_pass(pass_);
}

// A unit that a forward came back to after it was resharded stays unsharded in the next one. Where every unit was
// gathered again, those were two forwards in a row, and keeping all of them would keep the model.
void Turns::note_reused_units() {
  const auto reused = [](const Unit& unit) { return unit.gathers_in_pass > 1 || unit.keep_in_forward; };
  const bool any_once = std::any_of(units_.begin(), units_.end(), [&](const Unit& unit) {
    return unit.gathers_in_pass > 0 && unit.parent != kNobody && !reused(unit);
  });
  for (Unit& unit : units_) {
    if (unit.gathers_in_pass > 0) unit.keep_in_forward = any_once && reused(unit);
  }
}

// ---- turns

int Turns::move_to(std::span<const int> touched) {
  int next = touched.back();
  for (const int unit : touched) {
    if (is_ancestor(next, unit)) next = unit;
  }
  order_.visit(next);
  ++transitions_;
  const std::vector<int> ahead = units_ahead(next);
  reshard_others(touched, ahead);
  for (const int unit : touched) {
    if (!weights_.current(unit)) weights_.start_gather(unit, Cause::kRead);
    at(unit).prefetched = false;
    at(unit).awaits_use = false;
    at(unit).last_use = transitions_;
  }
  for (const int unit : touched) weights_.finish_gather(unit);
  current_ = next;
  if (pass_ == Pass::kForward || schedule_.backward == BackwardPrefetch::kPre) prefetch(ahead);
  return next;
}

std::vector<int> Turns::units_ahead(int unit) const {
  if (const auto& chosen = at(unit).ahead[static_cast<size_t>(pass_)]; !chosen.empty()) return chosen;
  if (schedule_.max_bytes == kUnlimited) return order_.ahead();
  std::vector<int64_t> bytes;
  for (size_t i = 0; i < units_.size(); ++i) bytes.push_back(weights_.bytes_to_gather(static_cast<int>(i)));
  return order_.ahead(bytes);
}

bool Turns::is_needed(int unit, std::span<const int> touched, std::span<const int> ahead) const {
  if (at(unit).awaits_use || contains(ahead, unit)) return true;
  if (schedule_.kind == Kind::kDelayedRelease && transitions_ - at(unit).last_use <= schedule_.delay) return true;
  return std::any_of(touched.begin(), touched.end(),
                     [&](int other) { return other == unit || is_ancestor(unit, other); });
}

void Turns::reshard_others(std::span<const int> touched, std::span<const int> ahead) {
  const std::vector<int> candidates = live_;
  for (const int unit : candidates) {
    if (is_needed(unit, touched, ahead)) continue;
    const bool was_wrong_guess = at(unit).prefetched;
    const bool in_forward = pass_ == Pass::kForward;
    const bool may = in_forward ? may_reshard_after_forward(unit) : weights_.may_reshard(unit, TurnEnd::kBackward);
    if (was_wrong_guess || may) weights_.reshard(unit, in_forward && !was_wrong_guess ? After::kForward : After::kUse);
  }
}

bool Turns::may_reshard_after_forward(int unit) const {
  return !at(unit).keep_in_forward && weights_.may_reshard(unit, TurnEnd::kForward);
}

void Turns::prefetch(std::span<const int> ahead) {
  const auto in_flight = [this] {
    int count = 0;
    for (const int unit : live_) count += weights_.gathers_in_flight(unit);
    return count;
  };
  const int limit = schedule_.max_gathers_in_flight;
  for (const int unit : ahead) {
    if (!weights_.may_gather_ahead(unit)) continue;
    if (limit > 0 && in_flight() >= limit) return;
    weights_.start_gather(unit, Cause::kAhead);
    at(unit).prefetched = true;
  }
}

// Delayed releases come with later transitions.
void Turns::end_with_gradients(int unit) {
  if (schedule_.kind == Kind::kDelayedRelease) return;
  if (weights_.may_reshard(unit, TurnEnd::kGradients)) weights_.reshard(unit, After::kUse);
}

// ---- what happened to weights

void Turns::note_live(int unit) {
  if (!contains(live_, unit)) live_.push_back(unit);
}

void Turns::note_reshard(int unit) {
  at(unit).prefetched = false;
  at(unit).awaits_use = false;
  std::erase(live_, unit);
  if (current_ == unit) leave();
}

}  // namespace fsdp::schedule
