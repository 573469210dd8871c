#include "fsdp/unit/context.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/base/trace.h"
#include "fsdp/comm/connection.h"

namespace fsdp {
namespace {

bool in_graph_task() { return torch::autograd::get_current_graph_task_id() != -1; }

// Where gathers and reductions wait: two queues, or one for both.
std::shared_ptr<comm::CommThread> make_thread(const World& world, const char* name) {
  return world.size > 1 ? std::make_shared<comm::CommThread>(name) : nullptr;
}

schedule::StaticOrderOptions order_options(const schedule::Schedule& schedule) {
  schedule::StaticOrderOptions options;
  options.forward_depth = schedule.depth_forward();
  options.backward_depth = schedule.depth_backward();
  options.max_bytes = schedule.max_bytes;
  return options;
}

}  // namespace

std::shared_ptr<Context> Context::of(const World& world, const ContextOptions& options) {
  static std::mutex mutex;
  static std::map<const comm::Connection*, std::weak_ptr<Context>> contexts;
  const comm::Connection* key = world.connection.get();
  {
    const std::lock_guard lock(mutex);
    if (auto context = contexts[key].lock()) {
      FSDP_CHECK(context->options_.schedule == options.schedule, "[fully_shard] schedule: got ",
                 describe(options.schedule), ", expected ", describe(context->options_.schedule),
                 ", which the first unit chose. All units of a world share one schedule.");
      FSDP_CHECK(context->options_.allocator == options.allocator,
                 "[fully_shard] allocator: got other options than the first unit. All units of a world share one.");
      return context;
    }
  }
  // Unlocked: it meets the other ranks, which may be threads of this process. Nobody else makes one for this
  // connection.
  auto context = std::make_shared<Context>(world, options);
  const std::lock_guard lock(mutex);
  std::erase_if(contexts, [](const auto& item) { return item.second.expired(); });
  contexts[key] = context;
  return context;
}

Context::Context(const World& world, const ContextOptions& options)
    : world_(world),
      options_(options),
      comm_(world.connection->world()),
      allocator_(make_buffer_allocator(options.allocator, c10::Device(c10::kCPU))),
      user_thread_(std::this_thread::get_id()),
      order_(order_options(options.schedule)) {
  const bool unified = options.schedule.threads == schedule::CommThreads::kUnified;
  gather_thread_ = make_thread(world, unified ? "comm thread" : "gather thread");
  reduce_thread_ = unified ? gather_thread_ : make_thread(world, "reduce thread");
}

// Optimizers may hold groups, and these the threads, longer than there is a model.
Context::~Context() {
  if (gather_thread_) gather_thread_->give_up();
  if (reduce_thread_) reduce_thread_->give_up();
}

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
    count_gathered(-group->gathered_bytes());
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
  const int64_t before = unit.gathered_bytes();
  for (const auto& group : unit.groups) group->poison();
  count_gathered(unit.gathered_bytes() - before);
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
  records_graph_ = at::GradMode::is_enabled();
  if (records_graph_) {
    for (const Touch& touch : touches) touch.group->note_forward_use(touch.index);
  }
  const bool all_in_use =
      std::all_of(touches.begin(), touches.end(), [this](const Touch& touch) { return in_use(*touch.unit); });
  if (!all_in_use) move_to(touches, operator_name);
}

// An ancestor that is unsharded may be read while we are inside one of its descendants; nothing changes by that.
// What a FullParameters holds is no step of a forward: one rank may read it alone, so nothing may be gathered for it.
bool Context::in_use(const UnitState& unit) const {
  if (unit.full_scopes > 0 && unit.current()) return true;
  if (current_ == nullptr || !unit.current()) return false;
  return &unit == current_ || unit.is_ancestor_of(*current_);
}

void Context::move_to(c10::ArrayRef<Touch> touches, const char* operator_name) {
  const Backstage backstage;
  end_compute();
  if (!in_backward_ && !forward_open_) begin_forward();
  UnitState* next = touches.back().unit;
  for (const Touch& touch : touches) {
    if (next->is_ancestor_of(*touch.unit)) next = touch.unit;
  }
  order_.visit(next->id);
  ++transitions_;
  const std::vector<int> ahead = units_ahead();
  reshard_others(touches, ahead);
  const std::string& parameter = touches.back().group->parameter_name(touches.back().index);
  for (const Touch& touch : touches) {
    if (!touch.unit->current()) start_unshard(*touch.unit, c10::str(operator_name, " reads '", parameter, "'"));
    touch.unit->prefetched = false;
    touch.unit->last_use = transitions_;
  }
  for (const Touch& touch : touches) finish_unshard(*touch.unit);
  current_ = next;
  if (!in_backward_ || options_.schedule.backward == schedule::BackwardPrefetch::kPre) prefetch(ahead);
  begin_compute(*next);
}

void Context::begin_forward() {
  forward_open_ = true;
  order_.begin_pass(schedule::Pass::kForward);
  for (UnitState* unit : units_) {
    if (unit != nullptr) unit->gathers_in_pass = 0;
  }
}

std::vector<int> Context::units_ahead() const {
  if (options_.schedule.max_bytes == schedule::kUnlimited) return order_.ahead();
  std::vector<int64_t> bytes;
  for (const UnitState* unit : units_) {
    bytes.push_back(unit == nullptr || unit->current() ? 0 : unit->released_bytes());
  }
  return order_.ahead(bytes);
}

bool Context::may_reshard(const UnitState& unit) const {
  if (unit.full_scopes > 0) return false;
  if (in_backward_) return unit.reshard_after_backward && unit.settled();
  return unit.reshard_after_forward && !unit.keep_in_forward;
}

void Context::reshard_others(c10::ArrayRef<Touch> touches, const std::vector<int>& ahead) {
  const bool delays = options_.schedule.kind == schedule::Kind::kDelayedRelease;
  const auto is_needed = [&](const UnitState& unit) {
    if (std::find(ahead.begin(), ahead.end(), unit.id) != ahead.end()) return true;
    if (delays && transitions_ - unit.last_use <= options_.schedule.delay) return true;
    return std::any_of(touches.begin(), touches.end(),
                       [&](const Touch& touch) { return touch.unit == &unit || unit.is_ancestor_of(*touch.unit); });
  };
  const std::vector<UnitState*> candidates = live_;
  for (UnitState* unit : candidates) {
    if (is_needed(*unit) || !(unit->prefetched || may_reshard(*unit))) continue;
    const bool backward_comes = !in_backward_ && !unit->prefetched && records_graph_;
    reshard(*unit, backward_comes ? After::kForward : After::kUse);
  }
}

void Context::prefetch(const std::vector<int>& ahead) {
  const int limit = options_.schedule.max_gathers_in_flight;
  for (const int id : ahead) {
    UnitState* unit = units_[static_cast<size_t>(id)];
    if (unit == nullptr || unit->current()) continue;
    if (limit > 0 && num_gathers_in_flight() >= limit) return;
    start_unshard(*unit, "prefetch");
    unit->prefetched = true;
  }
}

int Context::num_gathers_in_flight() const {
  int count = 0;
  for (const UnitState* unit : live_) {
    for (const auto& group : unit->groups) count += group->weight_phase() == WeightPhase::kUnsharding ? 1 : 0;
  }
  return count;
}

void Context::start_unshard(UnitState& unit, const std::string& cause) {
  bool started = false;
  const int64_t before = unit.gathered_bytes();
  for (const auto& group : unit.groups) {
    const int64_t bytes = group->start_unshard(cause);
    if (bytes == 0) continue;
    note_collective(unit, 'g');
    counters_.gathers += 1;
    counters_.gather_bytes += bytes;
    started = true;
  }
  count_gathered(unit.gathered_bytes() - before);
  if (started) ++unit.gathers_in_pass;
  list_as_live(unit);
}

void Context::count_gathered(int64_t change) {
  counters_.resident_unsharded_bytes += change;
  counters_.peak_unsharded_bytes = std::max(counters_.peak_unsharded_bytes, counters_.resident_unsharded_bytes);
  counters_.buffer_allocations = allocator_->num_allocations();
}

void Context::list_as_live(UnitState& unit) {
  if (unit.released_bytes() > 0 && std::find(live_.begin(), live_.end(), &unit) == live_.end()) live_.push_back(&unit);
}

void Context::finish_unshard(UnitState& unit) {
  const auto begin = Clock::now();
  const int64_t before = unit.gathered_bytes();
  for (const auto& group : unit.groups) group->finish_unshard();
  count_gathered(unit.gathered_bytes() - before);
  counters_.exposed_gather_ms += std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

void Context::unshard(UnitState& unit, const std::string& cause) {
  rethrow_deferred();
  const Backstage backstage;
  start_unshard(unit, cause);
  finish_unshard(unit);
}

void Context::reshard(UnitState& unit) {
  const Backstage backstage;
  reshard(unit, After::kUse);
}

void Context::reshard(UnitState& unit, After after) {
  const int64_t before = unit.gathered_bytes();
  for (const auto& group : unit.groups) {
    after == After::kForward ? group->reshard_to_forward_group() : group->reshard();
  }
  count_gathered(unit.gathered_bytes() - before);
  unit.prefetched = false;
  std::erase(live_, &unit);
  if (current_ == &unit) current_ = nullptr;
}

void Context::rest(UnitState& root) {
  end_compute();
  forward_open_ = false;
  for (UnitState* unit : root.subtree()) {
    if (unit->full_scopes > 0) continue;
    reshard(*unit);
    for (const auto& group : unit->groups) {
      count_gathered(-group->forget_forward_shard());
    }
  }
  allocator_->end_of_step();
}

int64_t Context::sum_over_ranks(int64_t value, const std::string& what) {
  rethrow_deferred();
  const Backstage backstage;
  const at::Tensor sum = at::full({1}, value, at::kLong);
  comm_->all_reduce_small(sum, {"sum over ranks", what, ""});
  return sum.const_data_ptr<int64_t>()[0];
}

// ---- traces

// From the moment its weights are there to the next transition: what the unit's operators took, ours in between
// included.
void Context::begin_compute(const UnitState& unit) {
  if (current_trace_sink() == nullptr) return;
  computing_ = &unit;
  compute_begin_ = Clock::now();
}

void Context::end_compute() {
  const UnitState* unit = std::exchange(computing_, nullptr);
  if (unit == nullptr || current_trace_sink() == nullptr) return;
  current_trace_sink()->add({in_backward_ ? "backward" : "forward", unit->name, compute_begin_, Clock::now(), ""});
}

// ---- between steps

void Context::check_moved_parameters() const {
  for (const UnitState* unit : units_) {
    if (unit == nullptr) continue;
    for (const auto& group : unit->groups) {
      const auto moved = group->find_moved_parameter();
      FSDP_CHECK(!moved, ParameterGroup::moved_message(*moved));
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

// Every unit rests, but for those that were told to outlive the backward.
void Context::rest_all() {
  end_compute();
  forward_open_ = false;
  for (UnitState* unit : units_) {
    if (unit == nullptr || unit->full_scopes > 0) continue;
    if (unit->reshard_after_backward || unit->prefetched) reshard(*unit);
    for (const auto& group : unit->groups) count_gathered(-group->forget_forward_shard());
  }
  allocator_->end_of_step();
}

}  // namespace fsdp
