#include "plan/time/step_script.h"

#include <algorithm>
#include <deque>

namespace fsdp::plan::time {
namespace {

using schedule::Pass;

constexpr size_t kMaxReducesInFlight = 2;  // as in fsdp/unit/context_backward.cpp
constexpr int kStepsToLearn = 2;           // the first records the order, the second is the first that follows it

enum class Weights { kResting, kUnsharding, kUnsharded };
enum class Gradients { kEmpty, kCollecting, kReducing };

// Of fsdp::UnitState and ParameterGroup, what decisions depend on.
struct UnitState {
  Weights weights = Weights::kResting;
  bool stale = true;  // the optimizer wrote since they were gathered; matters where they are never freed
  bool replicas_current = false;
  bool has_forward_shard = false;
  bool prefetched = false;
  int64_t last_use = 0;
  int gathers_in_pass = 0;
  bool keep_in_forward = false;
  Gradients gradients = Gradients::kEmpty;
  bool settled = true;
};

schedule::StaticOrderOptions order_options(const schedule::Schedule& schedule) {
  schedule::StaticOrderOptions options;
  options.forward_depth = schedule.depth_forward();
  options.backward_depth = schedule.depth_backward();
  options.max_bytes = schedule.max_bytes;
  return options;
}

// The runtime's Context without tensors: the same functions by the same names.
class Recorder {
 public:
  explicit Recorder(const StepWork& work)
      : work_(work),
        traits_(traits(work.strategy)),
        units_(work.units.size()),
        order_(order_options(work.schedule)),
        first_passage_(work.units.size(), -1) {
    for (size_t i = work.passages.size(); i-- > 0;) first_passage_[index(work.passages[i].unit)] = static_cast<int>(i);
  }

  std::vector<Instruction> record() {
    for (int step = 0; step <= kStepsToLearn; ++step) {
      script_.clear();
      for (microbatch_ = 0; microbatch_ < work_.microbatches; ++microbatch_) {
        forward();
        backward();
      }
      --microbatch_;
      emit(Action::kOptimize);
      for (UnitState& unit : units_) unit.stale = true, unit.replicas_current = false;
    }
    return std::move(script_);
  }

 private:
  static size_t index(int unit) { return static_cast<size_t>(unit); }
  UnitState& state(int unit) { return units_[index(unit)]; }
  const UnitState& state(int unit) const { return units_[index(unit)]; }

  // ---- what the strategy says
  bool is_released() const { return traits_.gather >= GatherTiming::kPerForward && work_.shard_ranks > 1; }
  bool is_gathered() const { return traits_.gather != GatherTiming::kNever && work_.shard_ranks > 1; }
  int forward_group() const {
    const int whole = traits_.reshard_after_forward ? work_.shard_ranks : 1;
    return work_.reshard_after_forward.value_or(whole);
  }
  bool is_last_microbatch() const { return microbatch_ + 1 == work_.microbatches; }
  bool reduces_now() const { return is_last_microbatch() || traits_.reduce_timing == ReduceTiming::kEveryMicrobatch; }
  bool reaches_replicas() const {
    return work_.replica_ranks > 1 && traits_.reduce == ReduceKind::kReduceScatter &&
           (is_last_microbatch() || work_.replica_reduce == ReduceTiming::kEveryMicrobatch);
  }

  bool is_ancestor(int unit, int of) const {
    for (int above = work_.units[index(of)].parent; above != -1; above = work_.units[index(above)].parent) {
      if (above == unit) return true;
    }
    return false;
  }
  bool current(int unit) const {
    if (!is_gathered()) return true;
    return state(unit).weights == Weights::kUnsharded && (is_released() || !state(unit).stale);
  }

  void emit(Action action, int unit = -1, Reach reach = Reach::kShardGroup, int passage = -1) {
    script_.push_back({action, unit, passage, pass_, reach, microbatch_});
  }

  // ---- weights
  void touch(int unit) {
    const bool in_use = current_ != -1 && current(unit) && (unit == current_ || is_ancestor(unit, current_));
    if (!in_use) move_to(unit);
  }

  void move_to(int unit) {
    order_.visit(unit);
    ++transitions_;
    const std::vector<int> ahead = units_ahead();
    reshard_others(unit, ahead);
    start_gather(unit);
    state(unit).prefetched = false;
    state(unit).last_use = transitions_;
    finish_gather(unit);
    current_ = unit;
    if (pass_ == Pass::kForward || work_.schedule.backward == schedule::BackwardPrefetch::kPre) prefetch(ahead);
  }

  std::vector<int> units_ahead() const {
    if (work_.schedule.max_bytes == schedule::kUnlimited) return order_.ahead();
    std::vector<int64_t> bytes;
    for (size_t i = 0; i < units_.size(); ++i) {
      const bool comes = is_released() && !current(static_cast<int>(i));
      bytes.push_back(comes ? work_.units[i].gather_bytes : 0);
    }
    return order_.ahead(bytes);
  }

  bool may_reshard(const UnitState& unit) const {
    return pass_ == Pass::kBackward ? unit.settled : forward_group() > 1 && !unit.keep_in_forward;
  }

  void reshard_others(int next, const std::vector<int>& ahead) {
    const bool delays = work_.schedule.kind == schedule::Kind::kDelayedRelease;
    const std::vector<int> candidates = live_;
    for (const int unit : candidates) {
      const bool is_ahead = std::find(ahead.begin(), ahead.end(), unit) != ahead.end();
      const bool is_delayed = delays && transitions_ - state(unit).last_use <= work_.schedule.delay;
      const bool is_needed = is_ahead || is_delayed || unit == next || is_ancestor(unit, next);
      if (is_needed || !(state(unit).prefetched || may_reshard(state(unit)))) continue;
      const bool backward_comes = pass_ == Pass::kForward && !state(unit).prefetched;
      if (backward_comes && forward_group() < work_.shard_ranks) state(unit).has_forward_shard = true;
      reshard(unit);
    }
  }

  void prefetch(const std::vector<int>& ahead) {
    const int limit = work_.schedule.max_gathers_in_flight;
    for (const int unit : ahead) {
      if (current(unit)) continue;
      const auto in_flight = std::count_if(live_.begin(), live_.end(),
                                           [this](int live) { return state(live).weights == Weights::kUnsharding; });
      if (limit > 0 && in_flight >= limit) return;
      start_gather(unit);
      state(unit).prefetched = true;
    }
  }

  void start_gather(int number) {
    UnitState& unit = state(number);
    if (current(number) || unit.weights == Weights::kUnsharding) return;
    Reach reach = Reach::kShardGroup;
    if (unit.has_forward_shard) {
      reach = Reach::kForwardGroup;
    } else if (traits_.shards_over_replicas && !unit.replicas_current) {
      reach = Reach::kShardsAndReplicas;
      unit.replicas_current = true;
    }
    unit.weights = Weights::kUnsharding;
    unit.stale = false;
    ++unit.gathers_in_pass;
    emit(Action::kStartGather, number, reach);
    if (is_released() && std::find(live_.begin(), live_.end(), number) == live_.end()) live_.push_back(number);
  }

  void finish_gather(int unit) {
    if (state(unit).weights != Weights::kUnsharding) return;
    state(unit).weights = Weights::kUnsharded;
    state(unit).has_forward_shard = false;
    emit(Action::kWaitGather, unit);
  }

  void reshard(int unit) {
    finish_gather(unit);
    if (is_released() && state(unit).weights == Weights::kUnsharded) {
      emit(Action::kReshard, unit);
      state(unit).weights = Weights::kResting;
    }
    state(unit).prefetched = false;
    std::erase(live_, unit);
    if (current_ == unit) current_ = -1;
  }

  void forward() {
    pass_ = Pass::kForward;
    order_.begin_pass(pass_);
    for (UnitState& unit : units_) unit.gathers_in_pass = 0;
    for (size_t i = 0; i < work_.passages.size(); ++i) {
      touch(work_.passages[i].unit);
      emit(Action::kCompute, work_.passages[i].unit, Reach::kShardGroup, static_cast<int>(i));
    }
    note_reused_units();
    order_.end_pass();
  }

  void note_reused_units() {
    const auto reused = [](const UnitState& unit) { return unit.gathers_in_pass > 1 || unit.keep_in_forward; };
    bool any_once = false;
    for (size_t i = 0; i < units_.size(); ++i) {
      any_once = any_once || (units_[i].gathers_in_pass > 0 && work_.units[i].parent != -1 && !reused(units_[i]));
    }
    for (UnitState& unit : units_) {
      if (unit.gathers_in_pass > 0) unit.keep_in_forward = any_once && reused(unit);
    }
  }

  // ---- gradients
  bool has_gradient(int unit) const { return work_.units[index(unit)].reduce_bytes > 0; }

  void backward() {
    pass_ = Pass::kBackward;
    current_ = -1;
    order_.begin_pass(pass_);
    for (size_t i = 0; i < units_.size(); ++i) units_[i].settled = !has_gradient(static_cast<int>(i));
    for (size_t i = work_.passages.size(); i-- > 0;) {
      const Passage& passage = work_.passages[i];
      if (passage.backward_reads == BackwardReads::kWeights) touch(passage.unit);
      const bool completes = first_passage_[index(passage.unit)] == static_cast<int>(i);
      const bool arrive = completes || passage.arrival == Arrival::kSomeGradients;
      if (has_gradient(passage.unit) && arrive) make_room_to_collect(passage.unit);
      emit(Action::kCompute, passage.unit, Reach::kShardGroup, static_cast<int>(i));
      if (has_gradient(passage.unit) && completes) complete_gradients(passage.unit);
    }
    while (!reduces_.empty()) finish_oldest_reduce();
    if (reduces_now()) emit(Action::kEndBackward);
    for (size_t i = 0; i < units_.size(); ++i) {
      reshard(static_cast<int>(i));
      units_[i].has_forward_shard = false;
    }
    current_ = -1;
    order_.end_pass();
  }

  void make_room_to_collect(int unit) {
    if (state(unit).gradients == Gradients::kCollecting) return;
    const size_t limit = work_.schedule.threads == schedule::CommThreads::kUnified ? 1 : kMaxReducesInFlight;
    while (state(unit).gradients == Gradients::kReducing || reduces_.size() >= limit) finish_oldest_reduce();
    state(unit).gradients = Gradients::kCollecting;
  }

  void complete_gradients(int unit) {
    state(unit).settled = true;
    if (work_.schedule.backward == schedule::BackwardPrefetch::kPost) prefetch(units_ahead());
    if (work_.schedule.release == schedule::ReleaseOrder::kReshardFirst) finish_unit_in_backward(unit);
    if (reduces_now()) start_reduce(unit);
    if (work_.schedule.release == schedule::ReleaseOrder::kReduceFirst) finish_unit_in_backward(unit);
  }

  void finish_unit_in_backward(int unit) {
    if (work_.schedule.kind != schedule::Kind::kDelayedRelease) reshard(unit);
  }

  void start_reduce(int unit) {
    emit(Action::kStartReduce, unit, reaches_replicas() ? Reach::kShardsAndReplicas : Reach::kShardGroup);
    state(unit).gradients = Gradients::kReducing;
    reduces_.push_back(unit);
  }

  void finish_oldest_reduce() {
    const int unit = reduces_.front();
    reduces_.pop_front();
    state(unit).gradients = Gradients::kEmpty;
    emit(Action::kWaitReduce, unit);
  }

  const StepWork& work_;
  StrategyTraits traits_;
  std::vector<UnitState> units_;
  schedule::StaticOrder order_;
  std::vector<int> first_passage_;  // of each unit
  std::vector<Instruction> script_;
  std::vector<int> live_;
  std::deque<int> reduces_;
  int current_ = -1;
  int64_t transitions_ = 0;
  Pass pass_ = Pass::kForward;
  int microbatch_ = 0;
};

}  // namespace

std::vector<Instruction> record_step(const StepWork& work) {
  check(work);
  return Recorder(work).record();
}

std::string describe(const Instruction& instruction, const StepWork& work) {
  const auto with_unit = [&](const char* event) {
    return event + (" " + work.units[static_cast<size_t>(instruction.unit)].name);
  };
  switch (instruction.action) {
    case Action::kCompute:
      return with_unit(instruction.pass == Pass::kForward ? "forward" : "backward");
    case Action::kStartGather:
      return with_unit("unshard");
    case Action::kWaitGather:
      return with_unit("wait gather");
    case Action::kReshard:
      return with_unit("reshard");
    case Action::kStartReduce:
      return with_unit("start reduce");
    case Action::kWaitReduce:
      return with_unit("wait reduce");
    case Action::kEndBackward:
      return "end of backward";
    case Action::kOptimize:
      return "optimizer";
  }
  return "";
}

}  // namespace fsdp::plan::time
