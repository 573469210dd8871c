#include "plan/time/step_script.h"

#include <algorithm>
#include <deque>

#include "fsdp/schedule/turns.h"

namespace fsdp::plan::time {
namespace {

using schedule::Pass;

constexpr int kStepsToLearn = 2;  // the first records the order, the second is the first that follows it

enum class Weights { kResting, kUnsharding, kUnsharded };
enum class Gradients { kEmpty, kCollecting, kReducing };

// Of fsdp::UnitState and ParameterGroup, what decisions depend on.
struct UnitState {
  Weights weights = Weights::kResting;
  bool stale = true;  // the optimizer wrote since they were gathered; matters where they are never freed
  bool replicas_current = false;
  bool has_forward_shard = false;
  Gradients gradients = Gradients::kEmpty;
  bool settled = true;
};

// The runtime's Context without tensors: writes down what schedule::Turns decides.
class Recorder : private schedule::UnitWeights {
 public:
  explicit Recorder(const StepWork& work)
      : work_(work),
        traits_(traits(work.strategy)),
        units_(work.units.size()),
        turns_(work.schedule, *this),
        first_passage_(work.units.size(), -1) {
    for (const UnitWork& unit : work.units) turns_.add_unit(unit.parent);
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
  bool is_sharded(int unit) const {
    if (!work_.units[index(unit)].of_experts) return work_.shard_ranks > 1;
    return work_.shard_ranks * work_.tensor_ranks > work_.expert_ranks;
  }
  bool is_released(int unit) const { return traits_.gather >= GatherTiming::kPerForward && is_sharded(unit); }
  bool is_gathered(int unit) const { return traits_.gather != GatherTiming::kNever && is_sharded(unit); }
  bool holds_weights() const {
    return work_.holds_weights && traits_.gather != GatherTiming::kPerForwardAndBackward && !is_last_microbatch();
  }
  int forward_group() const {
    const int whole = traits_.reshard_after_forward ? work_.shard_ranks : 1;
    return work_.reshard_after_forward.value_or(whole);
  }
  bool is_last_microbatch() const { return microbatch_ + 1 == work_.microbatches; }
  bool reduces_now() const { return is_due(traits_.reduce_timing, is_last_microbatch()); }
  bool reaches_replicas() const {
    return work_.replica_ranks > 1 && traits_.reduce == ReduceKind::kReduceScatter &&
           is_due(work_.replica_reduce, is_last_microbatch());
  }

  void emit(Action action, int unit = -1, Reach reach = Reach::kShardGroup, int passage = -1) {
    script_.push_back({action, unit, passage, pass_, reach, microbatch_});
  }

  // ---- weights, for Turns
  bool current(int unit) const override {
    if (!is_gathered(unit)) return true;
    return state(unit).weights == Weights::kUnsharded &&
           ((is_released(unit) && !work_.holds_weights) || !state(unit).stale);
  }
  int64_t bytes_to_gather(int unit) const override {
    return is_released(unit) && !current(unit) ? work_.units[index(unit)].gather_bytes : 0;
  }
  int gathers_in_flight(int unit) const override { return state(unit).weights == Weights::kUnsharding ? 1 : 0; }
  bool may_reshard(int unit, schedule::TurnEnd end) const override {
    return end == schedule::TurnEnd::kForward ? forward_group() > 1 : state(unit).settled && !holds_weights();
  }

  void start_gather(int number, schedule::Cause) override {
    UnitState& unit = state(number);
    if (unit.weights == Weights::kUnsharding) return;
    Reach reach = Reach::kShardGroup;
    if (unit.has_forward_shard) {
      reach = Reach::kForwardGroup;
    } else if (traits_.shards_over_replicas && !unit.replicas_current) {
      reach = Reach::kShardsAndReplicas;
      unit.replicas_current = true;
    }
    unit.weights = Weights::kUnsharding;
    unit.stale = false;
    emit(Action::kStartGather, number, reach);
    turns_.note_gather(number);
    if (is_released(number)) turns_.note_live(number);
  }

  void finish_gather(int unit) override {
    if (state(unit).weights != Weights::kUnsharding) return;
    state(unit).weights = Weights::kUnsharded;
    state(unit).has_forward_shard = false;
    emit(Action::kWaitGather, unit);
  }

  void reshard(int unit, schedule::After after) override {
    finish_gather(unit);
    if (is_released(unit) && state(unit).weights == Weights::kUnsharded) {
      emit(Action::kReshard, unit);
      state(unit).weights = Weights::kResting;
      state(unit).has_forward_shard = after == schedule::After::kForward && forward_group() < work_.shard_ranks;
    }
    turns_.note_reshard(unit);
  }

  void touch(int unit) {
    if (!turns_.is_inside(unit) || !current(unit)) turns_.move_to(unit);
  }

  void forward() {
    pass_ = Pass::kForward;
    turns_.begin_forward();
    for (size_t i = 0; i < work_.passages.size(); ++i) {
      touch(work_.passages[i].unit);
      emit(Action::kCompute, work_.passages[i].unit, Reach::kShardGroup, static_cast<int>(i));
    }
  }

  // ---- gradients
  bool has_gradient(int unit) const { return work_.units[index(unit)].reduce_bytes > 0; }

  void backward() {
    pass_ = Pass::kBackward;
    turns_.begin_backward();
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
      if (!holds_weights()) reshard(static_cast<int>(i), schedule::After::kUse);
      units_[i].has_forward_shard = false;
    }
    turns_.leave();
    turns_.end_backward();
  }

  void make_room_to_collect(int unit) {
    if (state(unit).gradients == Gradients::kCollecting) return;
    const size_t limit = work_.schedule.reductions_in_flight();
    while (state(unit).gradients == Gradients::kReducing || reduces_.size() >= limit) finish_oldest_reduce();
    state(unit).gradients = Gradients::kCollecting;
  }

  void complete_gradients(int unit) {
    state(unit).settled = true;
    turns_.complete_gradients(unit, [&] {
      if (reduces_now()) start_reduce(unit);
    });
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
  schedule::Turns turns_;
  std::vector<int> first_passage_;  // of each unit
  std::vector<Instruction> script_;
  std::deque<int> reduces_;
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
