#include "fsdp/unit/context.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

#include "fsdp/base/advice.h"
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
      turns_(options.schedule, *this) {
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

std::shared_ptr<DiskMemory> Context::disk_for(const ShardOptions& options) {
  const bool is_on_disk = options.main_weights == MainWeights::kOnDisk;
  FSDP_CHECK(is_on_disk == !options.offload_folder.empty(), "[fully_shard] ShardOptions::offload_folder: got '",
             options.offload_folder.string(), "', expected a folder with MainWeights::kOnDisk and none without.");
  if (!is_on_disk) return nullptr;
  std::shared_ptr<DiskMemory>& disk = disks_[options.offload_folder];
  if (disk) return disk;
  disk = std::make_shared<DiskMemory>(options.offload_folder, disk_access_from_environment());
  if (!disk->why_mapped().empty() && world_.rank == 0) {
    give_advice({"offload", c10::str("state in '", options.offload_folder.string(), "' goes through the page cache, ",
                                     "which is several times slower: ", disk->why_mapped(),
                                     ". Name a folder on a local disk with ext4 or xfs.")});
  }
  return disk;
}

void Context::set_ranks_of_step(const std::vector<int>& ranks) {
  if (comm_->ranks() == ranks) return;
  const bool is_unused =
      std::all_of(units_.begin(), units_.end(), [](const UnitState* unit) { return unit == nullptr; });
  FSDP_CHECK(is_unused, "[fully_shard] mesh: got an axis 'pp' of other sizes than the units before had, expected one ",
             "mesh for all units of a world. Make the mesh once, or another world for other models.");
  comm_ = world_.connection->group(ranks);
}

void Context::add_unit(UnitState& unit) {
  unit.id = turns_.add_unit();
  units_.push_back(&unit);
}

void Context::nest(UnitState& child, UnitState& parent) {
  child.parent = &parent;
  parent.children.push_back(&child);
  turns_.set_parent(child.id, parent.id);
}

void Context::set_units_ahead(UnitState& unit, schedule::Pass pass, std::vector<int> ids) {
  turns_.set_ahead(unit.id, pass, std::move(ids));
}

void Context::set_unused(UnitState& unit, UnusedUnit unused) {
  unit.unused = unused;
  has_companions_ = has_companions_ || unused == UnusedUnit::kZeros;
}

void Context::remove_unit(UnitState& unit) {
  units_[static_cast<size_t>(unit.id)] = nullptr;
  turns_.remove_unit(unit.id);
  std::erase_if(pending_writes_, [&](const Touch& write) { return write.unit == &unit; });
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
      // Not for the operators that the writing one is made of: it may not have written yet.
      if (!pending_writes_.empty() && (!below_autograd() || c10::InferenceMode::is_enabled())) settle_writes();
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
  note_live(unit);
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

// Autograd compares the versions of what it saved, but those of our views move with the next forward only.
void Context::check_unchanged(const Touch& touch, const char* operator_name) const {
  FSDP_CHECK(!touch.group->changed_since_forward(RecomputeRegion::is_open()), "[", operator_name, "] reads '",
             touch.group->parameter_name(touch.index),
             "' in a backward, but an optimizer changed it after the forward: the gradient would be that of other "
             "weights. Run backward() before the optimizer's step.");
}

void Context::follow(c10::ArrayRef<Touch> touches, const char* operator_name) {
  if (in_graph_task()) {
    enter_backward();
    for (const Touch& touch : touches) check_unchanged(touch, operator_name);
  } else {
    if (in_backward_) abandon_backward();
    for (const Touch& touch : touches) touch.group->note_touch_in_forward();
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
  return (unit.full_scopes > 0 || turns_.is_inside(unit.id)) && unit.current();
}

void Context::move_to(c10::ArrayRef<Touch> touches, const char* operator_name) {
  const Backstage backstage;
  end_compute();
  if (!in_backward_ && !turns_.is_forward_open()) begin_forward();
  note_left_units();
  c10::SmallVector<int, 4> ids;
  for (const Touch& touch : touches) {
    ids.push_back(touch.unit->id);
    for (UnitState* unit = touch.unit; unit != nullptr; unit = unit->parent) unit->left = {};
  }
  reader_ = {operator_name, &touches.back()};
  const int innermost = turns_.move_to({ids.data(), ids.size()});
  begin_compute(unit_of(innermost));
}

// Weights that are kept for a while, although the program has left their unit, are read no more from here on: memory
// that is released later was free since then.
void Context::note_left_units() {
  if (device_.is_cpu() || options_.schedule.kind != schedule::Kind::kDelayedRelease) return;
  const StreamPoint here = StreamPoint::now(device_);
  for (const int id : turns_.live()) {
    if (turns_.is_inside(id)) unit_of(id).left = here;
  }
}

void Context::begin_forward() {
  turns_.begin_forward();
  const StreamPoint here = StreamPoint::now(device_);
  for (UnitState* unit : units_) {
    if (unit == nullptr) continue;
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

// ---- weights, for Turns

bool Context::current(int id) const { return unit_of(id).current(); }

bool Context::may_gather_ahead(int id) const {
  const UnitState* unit = units_[static_cast<size_t>(id)];
  return unit != nullptr && unit->unused != UnusedUnit::kZeros && !unit->current();
}

int64_t Context::bytes_to_gather(int id) const {
  const UnitState* unit = units_[static_cast<size_t>(id)];
  return unit == nullptr || unit->current() ? 0 : unit->released_bytes();
}

int Context::gathers_in_flight(int id) const {
  const auto& groups = unit_of(id).groups;
  return static_cast<int>(std::count_if(groups.begin(), groups.end(), [](const auto& group) {
    return group->weight_phase() == WeightPhase::kUnsharding;
  }));
}

bool Context::may_reshard(int id, schedule::TurnEnd end) const {
  const UnitState& unit = unit_of(id);
  if (unit.full_scopes > 0 || unit.unused == UnusedUnit::kZeros) return false;
  if (end == schedule::TurnEnd::kForward) return unit.reshard_after_forward;
  // Frozen parameters may still be read when all gradients have come.
  const bool is_read_again = end == schedule::TurnEnd::kGradients && unit.read_without_gradient();
  return unit.reshard_after_backward && unit.settled() && !is_read_again;
}

void Context::start_gather(int id, schedule::Cause cause) {
  if (cause == schedule::Cause::kAhead) return start_unshard(unit_of(id), "prefetch");
  const std::string& parameter = reader_.touch->group->parameter_name(reader_.touch->index);
  start_unshard(unit_of(id), c10::str(reader_.operator_name, " reads '", parameter, "'"));
}

void Context::start_unshard(UnitState& unit, const std::string& cause) {
  bool started = false;
  const int64_t before = unit.gathered_bytes(), agreements = fp8_agreement_->runs();
  for (const auto& group : unit.groups) {
    const int64_t bytes = group->start_unshard(cause);
    if (bytes == 0) continue;
    note_collective(unit, 'g');
    counters_.gathers += 1;
    counters_.gather_bytes += bytes;
    started = true;
  }
  counters_.scale_agreements += fp8_agreement_->runs() - agreements;
  count_gathered(unit.gathered_bytes() - before);
  if (started) turns_.note_gather(unit.id);
  note_live(unit);
}

void Context::count_gathered(int64_t change) {
  counters_.resident_unsharded_bytes += change;
  counters_.peak_unsharded_bytes = std::max(counters_.peak_unsharded_bytes, counters_.resident_unsharded_bytes);
  counters_.buffer_allocations = allocator_->num_allocations();
}

void Context::note_live(const UnitState& unit) {
  if (unit.released_bytes() > 0) turns_.note_live(unit.id);
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
  turns_.expect_use(unit.id);
}

void Context::enter(UnitState& unit, const char* cause) {
  rethrow_deferred();
  settle_writes();
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
  settle_writes();
  const bool ends =
      !in_backward_ && unit.parent != nullptr && turns_.may_reshard_after_forward(unit.id) && unit.current();
  if (!ends) return;
  const Backstage backstage;
  end_compute();
  reshard(unit, schedule::After::kForward);
}

void Context::write_back(UnitState& unit) {
  const Backstage backstage;
  for (const auto& group : unit.groups) group->write_back();
}

void Context::reshard(UnitState& unit) {
  settle_writes();
  const Backstage backstage;
  reshard(unit, schedule::After::kUse);
}

void Context::reshard(UnitState& unit, schedule::After after, const StreamPoint& end) {
  const int64_t before = unit.gathered_bytes();
  const bool backward_comes = after == schedule::After::kForward && records_graph_;
  for (const auto& group : unit.groups) {
    backward_comes ? group->reshard_to_forward_group(end) : group->reshard(end);
  }
  const int64_t after_bytes = unit.gathered_bytes();
  count_gathered(after_bytes - before);
  // Autocast keeps converted weights, and would hand them out after an optimizer's step.
  if (after_bytes < before && at::autocast::is_autocast_enabled(device_.type())) at::autocast::clear_cache();
  unit.left = {};
  turns_.note_reshard(unit.id);
}

void Context::rest(UnitState& root) {
  settle_writes();
  end_compute();
  turns_.abandon_forward();
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
  settle_writes();
  end_compute();
  turns_.abandon_forward();
  for (UnitState* unit : units_) {
    if (unit == nullptr) continue;
    unit->offers = Offer::kNone;
    if (unit->full_scopes > 0) continue;
    if (unit->reshard_after_backward || turns_.is_prefetched(unit->id)) reshard(*unit);
    for (const auto& group : unit->groups) count_gathered(-group->forget_forward_shard());
  }
  allocator_->end_of_step();
}

}  // namespace fsdp
