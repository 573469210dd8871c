#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "fsdp/schedule/schedule.h"
#include "fsdp/schedule/static_order.h"

namespace fsdp::schedule {

// Why weights are gathered: something reads them now, or soon will.
enum class Cause { kRead, kAhead };

// How the turn of a unit ends: the computation left it, in a forward or a backward, or its gradients are complete.
enum class TurnEnd { kForward, kBackward, kGradients };

// What freed weights were used for. kForward: their backward comes, which may gather them from what is kept.
enum class After { kForward, kUse };

// The weights of all units, as Turns sees and moves them. Whoever gathers or frees one, told by Turns or not, tells
// Turns: note_gather(), note_live(), note_reshard().
class UnitWeights {
 public:
  virtual ~UnitWeights() = default;
  // Readable, and no optimizer wrote since.
  virtual bool current(int unit) const = 0;
  virtual bool may_gather_ahead(int unit) const { return !current(unit); }
  // What a gather of it would take of Schedule::max_bytes; 0 if it is current.
  virtual int64_t bytes_to_gather(int unit) const = 0;
  // Of this unit's parameter groups.
  virtual int gathers_in_flight(int unit) const = 0;
  // Whether nothing but the schedule keeps the weights when a turn ends like that.
  virtual bool may_reshard(int unit, TurnEnd end) const = 0;
  virtual void start_gather(int unit, Cause cause) = 0;  // where none is on its way
  virtual void finish_gather(int unit) = 0;              // waits; nothing to do where none is on its way
  virtual void reshard(int unit, After after) = 0;
};

// Whose turn it is, and what follows from that: which units are gathered, ahead too, and which are freed, in an order
// that is the same wherever units are visited in the same order. It takes the decisions of a Context, and of the
// planner for runs that do not exist yet; UnitWeights carries them out. Units are small numbers >= 0. Local; not
// thread-safe.
class Turns {
 public:
  static constexpr int kNobody = -1;

  // `weights` outlive it.
  Turns(const Schedule& schedule, UnitWeights& weights);
  Turns(const Turns&) = delete;

  // The unit's number: 0, 1, ...
  int add_unit(int parent = kNobody);
  void set_parent(int unit, int parent) { at(unit).parent = parent; }
  void remove_unit(int unit);
  // Gathered ahead when it is the unit's turn, in place of what the schedule says; empty: the schedule decides.
  void set_ahead(int unit, Pass pass, std::vector<int> units) {
    at(unit).ahead[static_cast<size_t>(pass)] = std::move(units);
  }

  // ---- passes
  void begin_forward();
  bool is_forward_open() const { return forward_open_; }
  void abandon_forward() { forward_open_ = false; }  // all units rest; its order is not learnt
  void begin_backward();                             // ends a forward that is open
  void end_backward() { order_.end_pass(); }

  // ---- turns
  // The computation is in this unit, in its descendant, or in an operator that reads both it and others. Such a touch
  // is no transition if the weights are current.
  bool is_inside(int unit) const {
    if (current_ == kNobody) return false;
    return unit == current_ || at(unit).last_use == transitions_ || is_ancestor(unit, current_);
  }
  // An operator reads these units: it is the turn of the innermost. Frees others, gathers them, waits, gathers ahead.
  // Returns the innermost.
  int move_to(std::span<const int> touched);
  int move_to(int unit) { return move_to(std::span<const int>(&unit, 1)); }
  void leave() { current_ = kNobody; }  // the computation is in no unit
  // The gradients of a parameter group of `unit` are complete: gathers ahead, calls `reduce` and frees the weights, in
  // the order of the schedule.
  template <class Reduce>
  void complete_gradients(int unit, Reduce&& reduce) {
    if (schedule_.backward == BackwardPrefetch::kPost) prefetch(units_ahead(unit));
    if (schedule_.release == ReleaseOrder::kReshardFirst) end_with_gradients(unit);
    reduce();
    if (schedule_.release == ReleaseOrder::kReduceFirst) end_with_gradients(unit);
  }
  // Whether the unit may be freed when a forward leaves it.
  bool may_reshard_after_forward(int unit) const;

  // ---- what happened to weights
  void note_gather(int unit) { ++at(unit).gathers_in_pass; }  // a collective was started
  void note_live(int unit);                                   // they are in memory, or soon will be, and may be freed
  void note_reshard(int unit);
  void expect_use(int unit) { at(unit).awaits_use = true; }  // the program asked for them: kept until they are read

  bool is_prefetched(int unit) const { return at(unit).prefetched; }
  const std::vector<int>& live() const { return live_; }

 private:
  struct Unit {
    int parent = kNobody;
    bool prefetched = false;                // gathered ahead, not read yet
    bool awaits_use = false;                // the program asked for it, and has not read it yet
    bool keep_in_forward = false;           // the last forward came back to it after it was resharded
    int gathers_in_pass = 0;                // in the running forward
    int64_t last_use = 0;                   // the transition in which it was entered last
    std::array<std::vector<int>, 2> ahead;  // of a Pass
  };

  Unit& at(int unit) { return units_[static_cast<size_t>(unit)]; }
  const Unit& at(int unit) const { return units_[static_cast<size_t>(unit)]; }
  bool is_ancestor(int unit, int of) const {
    for (int above = at(of).parent; above != kNobody; above = at(above).parent) {
      if (above == unit) return true;
    }
    return false;
  }
  std::vector<int> units_ahead(int unit) const;
  bool is_needed(int unit, std::span<const int> touched, std::span<const int> ahead) const;
  void reshard_others(std::span<const int> touched, std::span<const int> ahead);
  void prefetch(std::span<const int> ahead);
  void end_with_gradients(int unit);
  void note_reused_units();

  Schedule schedule_;
  UnitWeights& weights_;
  StaticOrder order_;
  std::vector<Unit> units_;
  std::vector<int> live_;  // units whose weights are gathered or on their way, and may be freed
  Pass pass_ = Pass::kForward;
  bool forward_open_ = false;
  int current_ = kNobody;    // the unit computed with now
  int64_t transitions_ = 0;  // how often that changed
};

}  // namespace fsdp::schedule
