// What a Context does from the first touch or gradient of a backward to its end, and when one does not end well.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/unit/buffers.h"
#include "fsdp/unit/context.h"

namespace fsdp {

// Lives in the graph task of a backward. Destroyed without having run, it tells that the backward threw. Threads of a
// device may let go of the task late, when the program has gone on to another backward or another model: so it tells
// only of its own backward, and owns no Context.
struct Context::BackwardGuard {
  explicit BackwardGuard(Context& owner) : context(owner.weak_from_this()), aborted(owner.backward_aborted_) {}
  ~BackwardGuard() {
    if (finished) return;
    *aborted = true;
    if (const auto owner = context.lock()) owner->give_up_backward(aborted);
  }
  void finish() {
    if (const auto owner = context.lock()) owner->finish_backward();
    finished = true;
  }
  std::weak_ptr<Context> context;
  std::shared_ptr<std::atomic<bool>> aborted;
  bool finished = false;
};

// ---- backward

void Context::enter_backward() {
  if (in_backward_ && !*backward_aborted_) return;
  if (in_backward_) abandon_backward();
  end_compute();
  in_backward_ = true;
  backward_aborted_ = std::make_shared<std::atomic<bool>>(false);
  reduced_in_backward_ = false;
  turns_.begin_backward();
  for (UnitState* unit : units_) {
    if (unit == nullptr) continue;
    unit->had_gradients = false;
    for (const auto& group : unit->groups) {
      group->take_gradient_marks();
      group->gradients().begin_backward();
    }
  }
  const auto guard = std::make_shared<BackwardGuard>(*this);
  torch::autograd::Engine::get_default_engine().queue_callback([guard] { guard->finish(); });
}

void Context::mark_gradients() {
  for (UnitState* unit : units_) {
    if (unit == nullptr) continue;
    for (const auto& group : unit->groups) group->mark_gradients();
    unit->watch_main_grads();
  }
}

void Context::gradient_ready(UnitState& unit, ParameterGroup& group, size_t index, const at::Tensor& parameter) {
  const TraceAdoption trace(trace_of_program());
  rethrow_deferred();
  at::Tensor gradient = parameter.grad();
  const_cast<at::Tensor&>(parameter).mutable_grad().reset();
  gradient = group.gradient_marks().release(index, gradient);
  enter_backward();
  const Backstage backstage;
  FSDP_CHECK(group.holds(parameter), ParameterGroup::moved_message(group.parameter_name(index)));
  if (!gradient.defined()) return;
  if (gradient.requires_grad()) advisor_.after_recorded_gradient(group.parameter_name(index));
  unit.root().had_gradients = true;
  // Ranks that looked up other rows have other indices: sums over them are dense, and so is what each brings.
  if (gradient.layout() != at::kStrided) gradient = gradient.to_dense();
  make_room_to_collect(group);
  group.gradients().add(index, gradient, unit.reduction_factors(), collect_of(unit, group));
  if (!group.gradients().complete()) return;
  if (unit.unused == UnusedUnit::kZeros) return;  // other ranks may have no gradients: all reduce it at the end
  turns_.complete_gradients(unit.id, [&] {
    if (reduces_now(unit, group)) start_reduce(unit, group);
  });
}

std::optional<kernels::GradientSlot> Context::open_gradient_slot(UnitState& unit, ParameterGroup& group, size_t index) {
  const TraceAdoption trace(trace_of_program());
  rethrow_deferred();
  enter_backward();
  const Backstage backstage;
  make_room_to_collect(group);
  auto slot = group.gradients().open_slot(index, unit.reduction_factors(), collect_of(unit, group));
  if (slot) counters_.gradients_in_place += 1;
  return slot;
}

// Strategies that reduce in the last microbatch only, and no_sync, keep gradients on this rank until then.
bool Context::reduces_now(const UnitState& unit, const ParameterGroup& group) const {
  return unit.syncs_gradients() && is_due(group.strategy_traits().reduce_timing, unit.last_microbatch);
}

Collect Context::collect_of(const UnitState& unit, const ParameterGroup& group) const {
  return reduces_now(unit, group) ? Collect::kForThisReduce : Collect::kAcrossMicrobatches;
}

// A group that collects needs its reduce buffer for itself, and no more than two may be on their way beside it.
void Context::make_room_to_collect(ParameterGroup& group) {
  const GradPhase phase = group.gradients().phase();
  if (phase == GradPhase::kCollecting) return;
  const size_t limit = options_.schedule.reductions_in_flight();
  while (group.gradients().phase() == GradPhase::kReducing || reduces_.size() >= limit) {
    finish_oldest_reduce();
  }
}

void Context::start_reduce(UnitState& unit, ParameterGroup& group) {
  make_room_to_collect(group);
  note_collective(unit, 'r');
  counters_.reduce_bytes +=
      group.gradients().start_reduce(group.unit_name(), unit.reduction_factors(), unit.reduce_reach(),
                                     unit.last_microbatch ? StepPlace::kEnd : StepPlace::kInside);
  counters_.reduces += 1;
  reduces_.push_back({&unit, &group, unit.last_microbatch && unit.reduce_reach() == ReduceReach::kAllReplicas});
  int64_t in_flight = 0;
  for (const Reduction& reduction : reduces_) in_flight += reduction.group->gradients().reduce_buffer_bytes();
  counters_.peak_reduce_bytes = std::max(counters_.peak_reduce_bytes, in_flight);
  reduced_in_backward_ = true;
}

void Context::finish_oldest_reduce() {
  const auto begin = Clock::now();
  const Reduction reduction = reduces_.front();
  reduces_.pop_front();
  reduction.group->gradients().finish_reduce(reduction.group->unit_name());
  const double waited_ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  counters_.exposed_reduce_ms += waited_ms;
  reduction.unit->waited_ms += waited_ms;
  if (reduction.is_last && reduction.group->updates_in_backward()) reduction.group->update_in_backward();
}

std::vector<ParameterGroup*> Context::trainable_groups_of_this_backward() const {
  std::vector<ParameterGroup*> groups;
  for (UnitState* unit : units_) {
    if (unit == nullptr || !unit->root().had_gradients) continue;
    for (const auto& group : unit->groups) groups.push_back(group.get());
  }
  return groups;
}

// End of the outermost backward.
void Context::finish_backward() {
  const TraceAdoption trace(trace_of_program());
  const Backstage backstage;
  end_compute();
  turns_.leave();
  try {
    rethrow_deferred();
    const UnitState* unused = find_forbidden_absence();
    reduce_leftovers();
    while (!reduces_.empty()) finish_oldest_reduce();
    FSDP_CHECK(unused == nullptr, "[backward] unit '", unused->name, "' was not used in this step, but its ",
               "ShardOptions::unused is UnusedUnit::kError. Use it in every step, or choose kSkip or kZeros.");
    if (reduced_in_backward_) {
      agree_on_step();
      sync_buffers_of_roots();
      average_ignored_gradients();
    }
  } catch (...) {
    *backward_aborted_ = true;
    throw;
  }
  in_backward_ = false;
  rest_all();
  turns_.end_backward();
  mark_gradients();
  if (!reduced_in_backward_) return;
  check_optimizer_mistake();
  advisor_.after_step(*this);
}

UnitState* Context::find_forbidden_absence() const {
  const auto is_one = [](UnitState* unit) {
    return unit != nullptr && unit->unused == UnusedUnit::kError && unit->root().had_gradients && !unit->took_part();
  };
  const auto found = std::find_if(units_.begin(), units_.end(), is_one);
  return found == units_.end() ? nullptr : *found;
}

// Buffers that a forward updated follow the step that its gradients are for.
void Context::sync_buffers_of_roots() {
  for (UnitState* unit : units_) {
    if (unit == nullptr || unit->parent != nullptr || !unit->had_gradients || !unit->last_microbatch) continue;
    make_equal(*comm_, unit->buffers, unit->buffer_sync);
  }
}

void Context::average_ignored_gradients() {
  for (UnitState* unit : units_) {
    if (unit == nullptr || !unit->root().had_gradients || !unit->last_microbatch || !unit->syncs_gradients()) continue;
    average_gradients(*comm_, unit->averaged);
  }
}

// Groups that were used but did not get all their gradients: every rank reduces them here, so that ranks whose graphs
// differ still meet. Roots in which no gradient arrived are left alone: autograd::grad, or another root's turn.
void Context::reduce_leftovers() {
  for (size_t i = units_.size(); i-- > 0;) {
    UnitState* unit = units_[i];
    if (unit == nullptr || !unit->root().had_gradients) continue;
    for (const auto& group : unit->groups) {
      GradientBuffers& gradients = group->gradients();
      const bool has_partial_sums = gradients.has_partial_sums() && unit->reduce_reach() == ReduceReach::kAllReplicas &&
                                    gradients.phase() != GradPhase::kReducing;
      const bool outstanding = gradients.phase() == GradPhase::kCollecting || has_partial_sums || unit->offered ||
                               (gradients.used() && !gradients.complete());
      if (outstanding && reduces_now(*unit, *group)) start_reduce(*unit, *group);
      if (unit->offered) group->count_missing_gradients_as_zero();
      group->forget_use();
    }
    unit->offered = false;
  }
}

// Before any optimizer can write: all ranks went the same way, and know which parameters had gradients anywhere.
void Context::agree_on_step() {
  const std::vector<ParameterGroup*> groups = trainable_groups_of_this_backward();
  if (comm_->size() > 1) {
    uint64_t arrivals = 14695981039346656037ULL;
    for (ParameterGroup* group : groups) {
      for (const uint8_t byte : group->gradients().arrived()) arrivals = (arrivals ^ byte) * 1099511628211ULL;
    }
    const auto order = static_cast<int64_t>(collectives_digest_ + 3 * gather_order_ + reduce_order_);
    const auto digests = comm_->gather_numbers({order, static_cast<int64_t>(arrivals)}, {"agree on the step", "", ""});
    bool same_arrivals = true;
    for (size_t rank = 0; rank < digests.size(); ++rank) {
      FSDP_CHECK(digests[rank][0] == digests[0][0], "[backward] rank ", comm_->ranks()[rank],
                 " gathered or reduced other units than rank ", comm_->ranks()[0], " ",
                 "in this step. Every rank must run the same operators on sharded parameters.");
      same_arrivals = same_arrivals && digests[rank][1] == digests[0][1];
    }
    if (!same_arrivals) agree_on_arrivals(groups);
  }
  forget_collectives();
  for (ParameterGroup* group : groups) group->gradients().publish();
}

void Context::agree_on_arrivals(const std::vector<ParameterGroup*>& groups) {
  std::vector<int> flags;
  for (ParameterGroup* group : groups)
    flags.insert(flags.end(), group->gradients().arrived().begin(), group->gradients().arrived().end());
  const at::Tensor sum = at::tensor(flags, at::kInt);
  comm_->all_reduce_small(sum, {"agree on gradients", "", ""});
  const int* anywhere = sum.const_data_ptr<int>();
  for (ParameterGroup* group : groups) {
    for (uint8_t& flag : group->gradients().arrived()) flag = *anywhere++ > 0 ? 1 : 0;
  }
}

void Context::check_optimizer_mistake() {
  ++backwards_with_reduces_;
  FSDP_CHECK(leaves_requested_ || backwards_with_reduces_ < 2,
             "[backward] gradients were reduced twice, but nobody asked for ",
             "the tensors that hold them: the optimizer was built on module->parameters(), which it cannot update. ",
             "Build it on fsdp::parameters(module).");
}

// ---- when things go wrong

// At once, so that whoever catches the exception finds gradients of the microbatches before or none, as his zero_grad()
// wants them. Inside of another backward, and on a thread of a device, that waits for the next event.
void Context::give_up_backward(const std::shared_ptr<std::atomic<bool>>& aborted) noexcept {
  if (!in_backward_ || backward_aborted_ != aborted || std::this_thread::get_id() != user_thread_ || in_graph_task()) {
    return;
  }
  try {
    abandon_backward();
  } catch (...) {
    // Of sums that nobody wants any more. The program hears of the first failure; a peer that is gone is so at the next
    // call, too.
  }
}

void Context::abandon_backward() {
  const Backstage backstage;
  in_backward_ = false;
  std::exception_ptr failure;  // the first; what must be forgotten is forgotten in any case
  while (!reduces_.empty()) {
    try {
      finish_oldest_reduce();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  for (UnitState* unit : units_) {
    if (unit == nullptr) continue;
    for (const auto& group : unit->groups) {
      // An operator may have added to what was there before it threw.
      if (group->gradients().has_open_slot()) unit->root().had_gradients = true;
    }
  }
  for (UnitState* unit : units_) {
    if (unit == nullptr) continue;
    for (const auto& group : unit->groups) {
      if (unit->root().had_gradients) group->gradients().drop();
      group->forget_use();
    }
    unit->offered = false;
    unit->offers = Offer::kNone;
    reshard(*unit);
  }
  forget_collectives();
  turns_.leave();
  mark_gradients();
  if (failure) std::rethrow_exception(failure);
}

// Ranks may do the same in another order (a gradient that is late on one of them), so the digest is a sum. Transports
// of devices know calls by nothing but their order; there it counts.
void Context::note_collective(const UnitState& unit, char kind) {
  uint64_t hash = 14695981039346656037ULL;
  for (const uint64_t value : {static_cast<uint64_t>(kind), static_cast<uint64_t>(unit.id)}) {
    hash = (hash ^ value) * 1099511628211ULL;
  }
  collectives_digest_ += hash;
  if (device_.is_cpu()) return;
  uint64_t& order = kind == 'g' ? gather_order_ : reduce_order_;
  order = (order ^ hash) * 1099511628211ULL;
}

void Context::forget_collectives() { collectives_digest_ = gather_order_ = reduce_order_ = 0; }

}  // namespace fsdp
