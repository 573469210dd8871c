#include "fsdp/unit/context.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/base/recompute_region.h"
#include "fsdp/comm/connection.h"
#include "fsdp/comm/host/host_links.h"
#include "fsdp/unit/lanes.h"

namespace fsdp {
namespace {

// Inside an operator that was seen already: what it makes of its inputs there needs no gradients.
bool below_autograd() { return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradFunctionality); }

schedule::StaticOrderOptions order_options(const schedule::Schedule& schedule) {
  schedule::StaticOrderOptions options;
  options.forward_depth = schedule.depth_forward();
  options.backward_depth = schedule.depth_backward();
  options.max_bytes = schedule.max_bytes;
  return options;
}

}  // namespace

std::shared_ptr<Context> Context::of(const World& world, const ContextOptions& options, c10::Device device) {
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
      FSDP_CHECK(context->device_ == device, "[fully_shard] device: got ", device, ", expected ", context->device_,
                 ", where the first unit's weights are. All units of a world are on one device: move the model there, ",
                 "or set ShardOptions::device.");
      return context;
    }
  }
  // Unlocked: it meets the other ranks, which may be threads of this process. Nobody else makes one for this
  // connection.
  auto context = std::make_shared<Context>(world, options, device);
  const std::lock_guard lock(mutex);
  std::erase_if(contexts, [](const auto& item) { return item.second.expired(); });
  contexts[key] = context;
  return context;
}

Context::Context(const World& world, const ContextOptions& options, c10::Device device)
    : world_(world),
      options_(options),
      device_(device),
      comm_(world.connection->world()),
      allocator_(make_buffer_allocator(options.allocator, device)),
      user_thread_(std::this_thread::get_id()),
      order_(order_options(options.schedule)) {
  const auto& links = world.connection->hosts().links();
  if (links && device.is_cpu()) allocator_->share(links->own_arena());
  const bool unified = options.schedule.threads == schedule::CommThreads::kUnified;
  gather_lane_ = make_lane(world, device, unified ? LaneUse::kBoth : LaneUse::kGathers);
  reduce_lane_ = unified ? gather_lane_ : make_lane(world, device, LaneUse::kReductions);
}

// Optimizers may hold groups, and these the lanes, longer than there is a model.
Context::~Context() {
  if (gather_lane_) gather_lane_->give_up();
  if (reduce_lane_) reduce_lane_->give_up();
}

void Context::add_unit(UnitState& unit) {
  unit.id = static_cast<int>(units_.size());
  units_.push_back(&unit);
}

void Context::set_unused(UnitState& unit, UnusedUnit unused) {
  unit.unused = unused;
  has_companions_ = has_companions_ || unused == UnusedUnit::kZeros;
}

void Context::remove_unit(UnitState& unit) {
  units_[static_cast<size_t>(unit.id)] = nullptr;
  std::erase(live_, &unit);
  if (current_ == &unit) current_ = nullptr;
  for (const auto& group : unit.groups) {
    std::erase_if(reduces_, [&](const Reduction& reduction) { return reduction.group == group.get(); });
    count_gathered(-group->gathered_bytes());
  }
}

bool Context::in_graph_task() { return torch::autograd::get_current_graph_task_id() != -1; }

// ---- touches

void Context::touch(c10::ArrayRef<Touch> touches, const char* operator_name) noexcept {
  // After a failure nothing more is gathered until the program has heard of it.
  if (!error_.present()) {
    const TraceAdoption trace(trace_of_program());
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

// Autograd runs the backward of a device on a thread of its own, which does the program's work: its events go where
// those of the forward went. Null on the program's thread.
std::shared_ptr<TraceSink> Context::trace_of_program() {
  if (std::this_thread::get_id() != user_thread_) return trace_;
  if (trace_ != current_trace_sink()) trace_ = current_trace_sink();
  return nullptr;
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
  records_graph_ = at::GradMode::is_enabled() || RecomputeRegion::is_open();
  if (records_graph_ && !below_autograd()) {
    for (const Touch& touch : touches) {
      if (touch.unit->full_scopes > 0) continue;  // one rank may read it alone
      // Views that are made where no graph is recorded do not tell whether a gradient is needed.
      if (!touch.needs_gradient && RecomputeRegion::is_open()) continue;
      const auto at = in_backward_ ? GradientBuffers::UseAt::kBackward : GradientBuffers::UseAt::kForward;
      touch.group->note_forward_use(touch.index, touch.needs_gradient, at);
    }
  }
  if (has_companions_ && !in_backward_) {
    for (const Touch& touch : touches) offer_companions(*touch.unit);
  }
  const bool all_in_use =
      std::all_of(touches.begin(), touches.end(), [this](const Touch& touch) { return in_use(*touch.unit); });
  if (!all_in_use) move_to(touches, operator_name);
}

// An ancestor that is unsharded may be read while we are inside one of its descendants; nothing changes by that. Nor if
// an operator that reads several units is made of others that read one of them. What a FullParameters holds is no step
// of a forward: one rank may read it alone, so nothing may be gathered for it.
bool Context::in_use(const UnitState& unit) const {
  if (unit.full_scopes > 0 && unit.current()) return true;
  if (current_ == nullptr || !unit.current()) return false;
  return &unit == current_ || unit.last_use == transitions_ || unit.is_ancestor_of(*current_);
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
  note_left_units();
  ++transitions_;
  const std::vector<int> ahead = units_ahead(*next);
  reshard_others(touches, ahead);
  const std::string& parameter = touches.back().group->parameter_name(touches.back().index);
  for (const Touch& touch : touches) {
    if (!touch.unit->current()) start_unshard(*touch.unit, c10::str(operator_name, " reads '", parameter, "'"));
    touch.unit->prefetched = false;
    touch.unit->awaits_use = false;
    touch.unit->last_use = transitions_;
    for (UnitState* unit = touch.unit; unit != nullptr; unit = unit->parent) unit->left = {};
  }
  for (const Touch& touch : touches) finish_unshard(*touch.unit);
  current_ = next;
  if (!in_backward_ || options_.schedule.backward == schedule::BackwardPrefetch::kPre) prefetch(ahead);
  begin_compute(*next);
}

// Weights that are kept for a while, although the program has left their unit, are read no more from here on: memory
// that is released later was free since then.
void Context::note_left_units() {
  if (device_.is_cpu() || current_ == nullptr || options_.schedule.kind != schedule::Kind::kDelayedRelease) return;
  const StreamPoint here = StreamPoint::now(device_);
  for (UnitState* unit : live_) {
    if (unit->last_use == transitions_ || unit->is_ancestor_of(*current_)) unit->left = here;
  }
}

void Context::begin_forward() {
  forward_open_ = true;
  order_.begin_pass(schedule::Pass::kForward);
  const StreamPoint here = StreamPoint::now(device_);
  for (UnitState* unit : units_) {
    if (unit == nullptr) continue;
    unit->gathers_in_pass = 0;
    for (const auto& group : unit->groups) {
      if (here.defined()) group->note_written(here);
      if (!group->model_weight_is_current()) group->finish_reading_stale_weights();
    }
  }
}

// Units whose use depends on a rank's data are gathered where all ranks pass: with the unit around them, once in a pass
// without and once in one with gradients.
void Context::offer_companions(UnitState& unit) {
  const Offer offer = records_graph_ ? Offer::kForBackward : Offer::kForForward;
  UnitState& root = unit.root();
  if (unit.offers >= offer && root.offers >= offer) return;
  const Backstage backstage;
  for (UnitState* other : root.subtree()) {
    const UnitState* enclosing = other->enclosing();
    const bool is_here = enclosing == &unit || (enclosing == nullptr && root.offers < offer);
    if (other->unused != UnusedUnit::kZeros || !is_here) continue;
    if (!other->current()) start_unshard(*other, "with its parent");
    other->offered = other->offered || records_graph_;
  }
  unit.offers = std::max(unit.offers, offer);
  root.offers = std::max(root.offers, offer);
}

std::vector<int> Context::units_ahead(const UnitState& unit) const {
  const std::vector<int>& chosen = in_backward_ ? unit.prefetch_in_backward : unit.prefetch_in_forward;
  if (!chosen.empty()) return chosen;
  if (options_.schedule.max_bytes == schedule::kUnlimited) return order_.ahead();
  std::vector<int64_t> bytes;
  for (const UnitState* other : units_) {
    bytes.push_back(other == nullptr || other->current() ? 0 : other->released_bytes());
  }
  return order_.ahead(bytes);
}

bool Context::may_reshard(const UnitState& unit) const {
  if (unit.full_scopes > 0 || unit.unused == UnusedUnit::kZeros) return false;
  if (in_backward_) return unit.reshard_after_backward && unit.settled();
  return unit.reshard_after_forward && !unit.keep_in_forward;
}

void Context::reshard_others(c10::ArrayRef<Touch> touches, const std::vector<int>& ahead) {
  const bool delays = options_.schedule.kind == schedule::Kind::kDelayedRelease;
  const auto is_needed = [&](const UnitState& unit) {
    if (unit.awaits_use) return true;
    if (std::find(ahead.begin(), ahead.end(), unit.id) != ahead.end()) return true;
    if (delays && transitions_ - unit.last_use <= options_.schedule.delay) return true;
    return std::any_of(touches.begin(), touches.end(),
                       [&](const Touch& touch) { return touch.unit == &unit || unit.is_ancestor_of(*touch.unit); });
  };
  const std::vector<UnitState*> candidates = live_;
  for (UnitState* unit : candidates) {
    if (is_needed(*unit) || !(unit->prefetched || may_reshard(*unit))) continue;
    const bool backward_comes = !in_backward_ && !unit->prefetched && records_graph_;
    reshard(*unit, backward_comes ? After::kForward : After::kUse, unit->left);
  }
}

void Context::prefetch(const std::vector<int>& ahead) {
  const int limit = options_.schedule.max_gathers_in_flight;
  for (const int id : ahead) {
    UnitState* unit = units_[static_cast<size_t>(id)];
    if (unit == nullptr || unit->current() || unit->unused == UnusedUnit::kZeros) continue;
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
  const double waited_ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  counters_.exposed_gather_ms += waited_ms;
  unit.waited_ms += waited_ms;
}

void Context::unshard(UnitState& unit, const std::string& cause) {
  rethrow_deferred();
  const Backstage backstage;
  start_unshard(unit, cause);
  finish_unshard(unit);
}

void Context::begin_unshard(UnitState& unit, const std::string& cause) {
  rethrow_deferred();
  const Backstage backstage;
  start_unshard(unit, cause);
  unit.awaits_use = true;
}

void Context::enter(UnitState& unit, const char* cause) {
  rethrow_deferred();
  if (in_graph_task()) {
    enter_backward();
  } else if (in_backward_) {
    abandon_backward();
  }
  records_graph_ = at::GradMode::is_enabled();
  if (unit.groups.empty() || in_use(unit)) return;
  const Touch first{&unit, unit.groups.front().get(), 0, false};
  move_to(first, cause);
}

// A root stays, because its backward comes first.
void Context::leave(UnitState& unit) {
  rethrow_deferred();
  const bool ends = !in_backward_ && unit.parent != nullptr && may_reshard(unit) && unit.current();
  if (!ends) return;
  const Backstage backstage;
  end_compute();
  reshard(unit, records_graph_ ? After::kForward : After::kUse);
}

void Context::write_back(UnitState& unit) {
  const Backstage backstage;
  for (const auto& group : unit.groups) group->write_back();
}

void Context::reshard(UnitState& unit) {
  const Backstage backstage;
  reshard(unit, After::kUse);
}

void Context::reshard(UnitState& unit, After after, const StreamPoint& end) {
  const int64_t before = unit.gathered_bytes();
  for (const auto& group : unit.groups) {
    after == After::kForward ? group->reshard_to_forward_group(end) : group->reshard(end);
  }
  const int64_t after_bytes = unit.gathered_bytes();
  count_gathered(after_bytes - before);
  // Autocast keeps converted weights, and would hand them out after an optimizer's step.
  if (after_bytes < before && at::autocast::is_autocast_enabled(device_.type())) at::autocast::clear_cache();
  unit.prefetched = false;
  unit.awaits_use = false;
  unit.left = {};
  std::erase(live_, &unit);
  if (current_ == &unit) current_ = nullptr;
}

void Context::rest(UnitState& root) {
  end_compute();
  forward_open_ = false;
  for (UnitState* unit : root.subtree()) {
    unit->offers = Offer::kNone;
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
  shown_ = show_range(in_backward_ ? "backward" : "forward", unit.name);
  if (current_trace_sink() == nullptr) return;
  computing_ = &unit;
  compute_begin_ = Clock::now();
}

void Context::end_compute() {
  hide_range(std::exchange(shown_, 0));
  const UnitState* unit = std::exchange(computing_, nullptr);
  if (unit == nullptr || current_trace_sink() == nullptr) return;
  current_trace_sink()->add({in_backward_ ? "backward" : "forward", unit->name, compute_begin_, Clock::now(), ""});
}

// ---- between steps

void Context::on_library_entry() {
  if (in_graph_task()) return;
  try {
    if (in_backward_) abandon_backward();
    rest_all();
  } catch (...) {
    defer(std::current_exception());
  }
  rethrow_deferred();
  check_moved_tensors();
  for (UnitState* unit : units_) {
    if (unit == nullptr) continue;
    for (const auto& group : unit->groups) group->heed_gradient_marks();
  }
}

// Every unit rests, but for those that were told to outlive the backward.
void Context::rest_all() {
  end_compute();
  forward_open_ = false;
  for (UnitState* unit : units_) {
    if (unit == nullptr) continue;
    unit->offers = Offer::kNone;
    if (unit->full_scopes > 0) continue;
    if (unit->reshard_after_backward || unit->prefetched) reshard(*unit);
    for (const auto& group : unit->groups) count_gathered(-group->forget_forward_shard());
  }
  allocator_->end_of_step();
}

}  // namespace fsdp
