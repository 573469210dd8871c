// Over 500 lines because touches, backward and recovery are one state machine, which is easier to check in one place.
#include "fsdp/unit/context.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>

#include "fsdp/base/check.h"
#include "fsdp/base/trace.h"
#include "fsdp/comm/connection.h"

namespace fsdp {
namespace {

// What we do between a program's operators is not the program's business: no observer sees it, no graph records it, and
// tensors made here are normal ones even under InferenceMode.
struct Backstage {
  at::DisableRecordFunctionGuard no_observers;
  c10::InferenceMode normal_tensors{false};
  at::NoGradGuard no_grad;
};

bool in_graph_task() { return torch::autograd::get_current_graph_task_id() != -1; }

double ms_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

std::string moved_parameter_message(const std::string& name) {
  return c10::str("[parameters] '", name,
                  "' left the buffer it was sharded into: Module::to(), clone() or load() gave it ",
                  "other memory. Move, convert or load a model before fully_shard().");
}

// Gradients on their way take memory; two buffers keep the wire busy.
constexpr size_t kMaxReducesInFlight = 2;

}  // namespace

// Lives in the graph task of a backward. Destroyed without having run, it tells that the backward threw.
struct Context::BackwardGuard {
  explicit BackwardGuard(std::shared_ptr<Context> context) : context(std::move(context)) {}
  ~BackwardGuard() {
    if (!finished) context->backward_aborted_ = true;
  }
  std::shared_ptr<Context> context;
  bool finished = false;
};

std::shared_ptr<Context> Context::of(const World& world, const schedule::StaticOrderOptions& schedule) {
  static std::mutex mutex;
  static std::map<const comm::Connection*, std::weak_ptr<Context>> contexts;
  const comm::Connection* key = world.connection.get();
  {
    const std::lock_guard lock(mutex);
    if (auto context = contexts[key].lock()) return context;
  }
  // Unlocked: it meets the other ranks, which may be threads of this process. Nobody else makes one for this
  // connection.
  auto context = std::make_shared<Context>(world, schedule);
  const std::lock_guard lock(mutex);
  std::erase_if(contexts, [](const auto& item) { return item.second.expired(); });
  contexts[key] = context;
  return context;
}

Context::Context(const World& world, const schedule::StaticOrderOptions& schedule)
    : world_(world),
      comm_(world.connection->world()),
      slabs_(std::make_shared<SlabAllocator>(c10::Device(c10::kCPU))),
      user_thread_(std::this_thread::get_id()),
      order_(schedule) {}

Context::~Context() = default;

void Context::add_unit(UnitState& unit) {
  unit.id = static_cast<int>(units_.size());
  units_.push_back(&unit);
}

void Context::remove_unit(UnitState& unit) {
  units_[static_cast<size_t>(unit.id)] = nullptr;
  std::erase(live_, &unit);
  if (current_ == &unit) current_ = nullptr;
  for (const auto& group : unit.groups) {
    std::erase(reduces_, group.get());
    if (group->residence() == Residence::kReleased && group->unsharded().resident()) {
      counters_.resident_unsharded_bytes -= group->unsharded().bytes();
    }
  }
}

// ---- touches

void Context::touch(c10::ArrayRef<Touch> touches, const char* operator_name) noexcept {
  // After a failure nothing more is gathered until the program has heard of it.
  if (!error_.present()) {
    try {
      check_thread(touches.front(), operator_name);
      follow(touches, operator_name);
      return;
    } catch (...) {
      error_.set(std::current_exception());
    }
  }
  const Backstage backstage;
  for (const Touch& touch : touches) poison(*touch.unit);
}

void Context::poison(UnitState& unit) {
  for (const auto& group : unit.groups) {
    const bool was_resident = group->unsharded().resident();
    group->poison();
    if (!was_resident && group->unsharded().resident())
      counters_.resident_unsharded_bytes += group->unsharded().bytes();
  }
  list_as_live(unit);
}

void Context::refuse_write(const Touch& touch, const char* operator_name) noexcept {
  touch.group->distrust_unsharded();
  try {
    FSDP_CHECK(false, "[", operator_name, "] writes into '", touch.group->parameter_name(touch.index),
               "', a gathered copy that is thrown away. Write to its leaf from fsdp::parameters() instead.");
  } catch (...) {
    error_.set(std::current_exception());
  }
}

void Context::check_thread(const Touch& touch, const char* operator_name) const {
  if (std::this_thread::get_id() == user_thread_ || in_graph_task()) return;
  std::ostringstream threads;
  threads << "thread " << std::this_thread::get_id() << ", but its model belongs to thread " << user_thread_;
  FSDP_CHECK(false, "[", operator_name, "] reads '", touch.group->parameter_name(touch.index), "' on ", threads.str(),
             ". Use a sharded model on the thread that sharded it.");
}

// Autograd compares the versions of what it saved, but our views keep theirs when an optimizer writes the main weight.
void Context::check_unchanged(const Touch& touch, const char* operator_name) const {
  FSDP_CHECK(!touch.group->changed_since_forward(), "[", operator_name, "] reads '",
             touch.group->parameter_name(touch.index),
             "' in a backward, but an optimizer changed it after the forward: the gradient would be that of other "
             "weights. Run backward() before the optimizer's step.");
}

void Context::follow(c10::ArrayRef<Touch> touches, const char* operator_name) {
  if (in_graph_task()) {
    enter_backward();
    for (const Touch& touch : touches) check_unchanged(touch, operator_name);
  } else if (in_backward_) {
    abandon_backward();
  }
  if (at::GradMode::is_enabled()) {
    for (const Touch& touch : touches) touch.group->note_forward_use(touch.index);
  }
  const bool all_in_use =
      std::all_of(touches.begin(), touches.end(), [this](const Touch& touch) { return in_use(*touch.unit); });
  if (!all_in_use) move_to(touches, operator_name);
}

// An ancestor that is unsharded may be read while we are inside one of its descendants; nothing changes by that.
bool Context::in_use(const UnitState& unit) const {
  if (current_ == nullptr || !unit.current()) return false;
  return &unit == current_ || unit.is_ancestor_of(*current_);
}

void Context::move_to(c10::ArrayRef<Touch> touches, const char* operator_name) {
  const Backstage backstage;
  if (!in_backward_ && !forward_open_) begin_forward();
  UnitState* next = touches.back().unit;
  for (const Touch& touch : touches) {
    if (next->is_ancestor_of(*touch.unit)) next = touch.unit;
  }
  order_.visit(next->id);
  const std::vector<int> ahead = order_.ahead();
  reshard_others(touches, ahead);
  const std::string& parameter = touches.back().group->parameter_name(touches.back().index);
  for (const Touch& touch : touches) {
    if (!touch.unit->current()) start_unshard(*touch.unit, c10::str(operator_name, " reads '", parameter, "'"));
    touch.unit->prefetched = false;
  }
  for (const Touch& touch : touches) finish_unshard(*touch.unit);
  current_ = next;
  prefetch(ahead);
}

void Context::begin_forward() {
  forward_open_ = true;
  order_.begin_pass(schedule::Pass::kForward);
  for (UnitState* unit : units_) {
    if (unit != nullptr) unit->gathers_in_pass = 0;
  }
}

bool Context::may_reshard(const UnitState& unit) const {
  if (in_backward_) return unit.reshard_after_backward && unit.settled();
  return unit.reshard_after_forward && !unit.keep_in_forward;
}

void Context::reshard_others(c10::ArrayRef<Touch> touches, const std::vector<int>& ahead) {
  const auto is_needed = [&](const UnitState& unit) {
    if (std::find(ahead.begin(), ahead.end(), unit.id) != ahead.end()) return true;
    return std::any_of(touches.begin(), touches.end(),
                       [&](const Touch& touch) { return touch.unit == &unit || unit.is_ancestor_of(*touch.unit); });
  };
  const std::vector<UnitState*> candidates = live_;
  for (UnitState* unit : candidates) {
    if (!is_needed(*unit) && (unit->prefetched || may_reshard(*unit))) reshard(*unit);
  }
}

void Context::prefetch(const std::vector<int>& ahead) {
  for (const int id : ahead) {
    UnitState* unit = units_[static_cast<size_t>(id)];
    if (unit == nullptr || unit->current()) continue;
    start_unshard(*unit, "prefetch");
    unit->prefetched = true;
  }
}

void Context::start_unshard(UnitState& unit, const std::string& cause) {
  bool started = false;
  for (const auto& group : unit.groups) {
    const bool was_resident = group->unsharded().resident();
    const int64_t bytes = group->start_unshard(cause);
    if (!was_resident && group->unsharded().resident())
      counters_.resident_unsharded_bytes += group->unsharded().bytes();
    if (bytes == 0) continue;
    note_collective(unit, 'g');
    counters_.gathers += 1;
    counters_.gather_bytes += bytes;
    started = true;
  }
  counters_.peak_unsharded_bytes = std::max(counters_.peak_unsharded_bytes, counters_.resident_unsharded_bytes);
  counters_.slab_allocations = slabs_->num_allocations();
  if (started) ++unit.gathers_in_pass;
  list_as_live(unit);
}

void Context::list_as_live(UnitState& unit) {
  if (unit.released_bytes() > 0 && std::find(live_.begin(), live_.end(), &unit) == live_.end()) live_.push_back(&unit);
}

// Ranks may do the same in another order (a gradient that is late on one of them), so the digest is a sum.
void Context::note_collective(const UnitState& unit, char kind) {
  uint64_t hash = 14695981039346656037ULL;
  for (const uint64_t value : {static_cast<uint64_t>(kind), static_cast<uint64_t>(unit.id)}) {
    hash = (hash ^ value) * 1099511628211ULL;
  }
  collectives_digest_ += hash;
}

void Context::finish_unshard(UnitState& unit) {
  const auto begin = Clock::now();
  for (const auto& group : unit.groups) group->finish_unshard();
  counters_.exposed_gather_ms += ms_since(begin);
}

void Context::unshard(UnitState& unit, const std::string& cause) {
  rethrow_deferred();
  const Backstage backstage;
  start_unshard(unit, cause);
  finish_unshard(unit);
}

void Context::reshard(UnitState& unit) {
  const Backstage backstage;
  for (const auto& group : unit.groups) {
    const bool was_resident = group->unsharded().resident();
    group->reshard();
    if (was_resident && !group->unsharded().resident())
      counters_.resident_unsharded_bytes -= group->unsharded().bytes();
  }
  unit.prefetched = false;
  std::erase(live_, &unit);
  if (current_ == &unit) current_ = nullptr;
}

void Context::rest(UnitState& root) {
  forward_open_ = false;
  for (UnitState* unit : root.subtree()) reshard(*unit);
}

// ---- backward

void Context::enter_backward() {
  if (in_backward_ && !backward_aborted_) return;
  if (in_backward_) abandon_backward();
  in_backward_ = true;
  backward_aborted_ = false;
  reduced_in_backward_ = false;
  current_ = nullptr;
  if (forward_open_) {
    note_reused_units();
    order_.end_pass();
    forward_open_ = false;
  }
  order_.begin_pass(schedule::Pass::kBackward);
  for (UnitState* unit : units_) {
    if (unit == nullptr) continue;
    unit->had_gradients = false;
    for (const auto& group : unit->groups) {
      if (group->trainable()) group->gradients().begin_backward();
    }
  }
  auto guard = std::make_shared<BackwardGuard>(shared_from_this());
  torch::autograd::Engine::get_default_engine().queue_callback([guard] {
    guard->finished = true;
    guard->context->finish_backward();
  });
}

// A unit that a forward came back to after it was resharded stays unsharded in the next one. Where every unit was
// gathered again, those were two forwards in a row, and keeping all of them would keep the model.
void Context::note_reused_units() {
  const auto visited = [](const UnitState* unit) { return unit != nullptr && unit->gathers_in_pass > 0; };
  const auto reused = [](const UnitState* unit) { return unit->gathers_in_pass > 1 || unit->keep_in_forward; };
  bool any_once = false;
  for (const UnitState* unit : units_)
    any_once = any_once || (visited(unit) && unit->parent != nullptr && !reused(unit));
  for (UnitState* unit : units_) {
    if (visited(unit)) unit->keep_in_forward = any_once && reused(unit);
  }
}

void Context::gradient_ready(UnitState& unit, ParameterGroup& group, size_t index, const at::Tensor& parameter) {
  rethrow_deferred();
  enter_backward();
  const Backstage backstage;
  FSDP_CHECK(group.holds(parameter), moved_parameter_message(group.parameter_name(index)));
  at::Tensor gradient = parameter.grad();
  const_cast<at::Tensor&>(parameter).mutable_grad().reset();
  if (!gradient.defined()) return;
  unit.root().had_gradients = true;
  FSDP_CHECK(gradient.layout() == at::kStrided, "[backward] gradient of '", group.parameter_name(index),
             "': got a sparse tensor, expected a dense one. Build the embedding with sparse=false.");
  make_room_to_collect(group);
  const double divisor = unit.divide_factor.value_or(group.comm().size());
  group.gradients().add(index, gradient, 1.0 / divisor);
  if (!group.gradients().complete()) return;
  if (reduces_now(unit, group)) start_reduce(unit, group);
  if (unit.settled() && unit.reshard_after_backward && !unit.has_frozen_parameters()) reshard(unit);
}

// Strategies that reduce in the last microbatch only, and no_sync, keep gradients on this rank until then.
bool Context::reduces_now(const UnitState& unit, const ParameterGroup& group) const {
  return unit.syncs_gradients() &&
         (unit.last_microbatch || group.strategy_traits().reduce_timing == ReduceTiming::kEveryMicrobatch);
}

// A group that collects needs its reduce buffer for itself, and no more than two may be on their way beside it.
void Context::make_room_to_collect(ParameterGroup& group) {
  const GradPhase phase = group.gradients().phase();
  if (phase == GradPhase::kCollecting) return;
  while (group.gradients().phase() == GradPhase::kReducing || reduces_.size() >= kMaxReducesInFlight) {
    finish_oldest_reduce();
  }
}

void Context::start_reduce(UnitState& unit, ParameterGroup& group) {
  make_room_to_collect(group);
  note_collective(unit, 'r');
  counters_.reduce_bytes += group.gradients().start_reduce(group.unit_name());
  counters_.reduces += 1;
  reduces_.push_back(&group);
  int64_t in_flight = 0;
  for (const ParameterGroup* reducing : reduces_) in_flight += reducing->gradients().reduce_buffer_bytes();
  counters_.peak_reduce_bytes = std::max(counters_.peak_reduce_bytes, in_flight);
  reduced_in_backward_ = true;
}

void Context::finish_oldest_reduce() {
  const auto begin = Clock::now();
  ParameterGroup* group = reduces_.front();
  reduces_.pop_front();
  group->gradients().finish_reduce(group->unit_name());
  counters_.exposed_reduce_ms += ms_since(begin);
}

std::vector<ParameterGroup*> Context::trainable_groups(bool of_this_backward) const {
  std::vector<ParameterGroup*> groups;
  for (UnitState* unit : units_) {
    if (unit == nullptr || (of_this_backward && !unit->root().had_gradients)) continue;
    for (const auto& group : unit->groups) {
      if (group->trainable()) groups.push_back(group.get());
    }
  }
  return groups;
}

// End of the outermost backward.
void Context::finish_backward() {
  const Backstage backstage;
  in_backward_ = false;
  current_ = nullptr;
  rethrow_deferred();
  reduce_leftovers();
  while (!reduces_.empty()) finish_oldest_reduce();
  if (reduced_in_backward_) agree_on_step();
  rest_all();
  order_.end_pass();
  if (reduced_in_backward_) check_optimizer_mistake();
}

// Groups that were used but did not get all their gradients: every rank reduces them here, so that ranks whose graphs
// differ still meet. Roots in which no gradient arrived are left alone: autograd::grad, or another root's turn.
void Context::reduce_leftovers() {
  for (size_t i = units_.size(); i-- > 0;) {
    UnitState* unit = units_[i];
    if (unit == nullptr || !unit->root().had_gradients) continue;
    for (const auto& group : unit->groups) {
      if (!group->trainable()) continue;
      GradientBuffers& gradients = group->gradients();
      const bool outstanding =
          gradients.phase() == GradPhase::kCollecting || (gradients.used() && !gradients.complete());
      if (outstanding && reduces_now(*unit, *group)) start_reduce(*unit, *group);
      gradients.forget_use();
    }
  }
}

// Before any optimizer can write: all ranks went the same way, and know which parameters had gradients anywhere.
void Context::agree_on_step() {
  const std::vector<ParameterGroup*> groups = trainable_groups(/*of_this_backward=*/true);
  if (comm_->size() > 1) {
    uint64_t arrivals = 14695981039346656037ULL;
    for (ParameterGroup* group : groups) {
      for (const uint8_t byte : group->gradients().arrived()) arrivals = (arrivals ^ byte) * 1099511628211ULL;
    }
    const at::Tensor mine = at::empty({2}, at::kLong);
    mine.mutable_data_ptr<int64_t>()[0] = static_cast<int64_t>(collectives_digest_);
    mine.mutable_data_ptr<int64_t>()[1] = static_cast<int64_t>(arrivals);
    const at::Tensor all = at::empty({2 * comm_->size()}, at::kLong);
    comm_->all_gather(all, mine, {"agree on the step", "", ""}).wait();
    const int64_t* digests = all.const_data_ptr<int64_t>();
    bool same_arrivals = true;
    for (int rank = 0; rank < comm_->size(); ++rank) {
      FSDP_CHECK(digests[2 * rank] == digests[0], "[backward] rank ", rank,
                 " gathered or reduced other units than rank 0 ",
                 "in this step. Every rank must run the same operators on sharded parameters.");
      same_arrivals = same_arrivals && digests[2 * rank + 1] == digests[1];
    }
    if (!same_arrivals) agree_on_arrivals(groups);
  }
  collectives_digest_ = 0;
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

void Context::abandon_backward() {
  const Backstage backstage;
  in_backward_ = false;
  backward_aborted_ = false;
  while (!reduces_.empty()) finish_oldest_reduce();
  for (UnitState* unit : units_) {
    if (unit == nullptr) continue;
    for (const auto& group : unit->groups) {
      if (!group->trainable()) continue;
      if (unit->root().had_gradients) group->gradients().drop();
      group->gradients().forget_use();
    }
    reshard(*unit);
  }
  collectives_digest_ = 0;
  current_ = nullptr;
}

void Context::check_moved_parameters() const {
  for (const UnitState* unit : units_) {
    if (unit == nullptr) continue;
    for (const auto& group : unit->groups) {
      const auto moved = group->find_moved_parameter();
      FSDP_CHECK(!moved, moved_parameter_message(*moved));
    }
  }
}

void Context::on_library_entry() {
  if (in_graph_task()) return;
  try {
    if (in_backward_) abandon_backward();
    rest_all();
  } catch (...) {
    defer(std::current_exception());
  }
  rethrow_deferred();
  check_moved_parameters();
}

// Between steps: every unit rests, but for those that were told to outlive the backward.
void Context::rest_all() {
  forward_open_ = false;
  for (UnitState* unit : units_) {
    if (unit != nullptr && (unit->reshard_after_backward || unit->prefetched)) reshard(*unit);
  }
}

}  // namespace fsdp
