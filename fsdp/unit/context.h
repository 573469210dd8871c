// 202 lines because every event of a step comes together here.
#pragma once

#include <c10/util/ArrayRef.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/base/trace.h"
#include "fsdp/buffer/disk_memory.h"
#include "fsdp/group/parameter_group.h"
#include "fsdp/mesh/mesh.h"
#include "fsdp/schedule/turns.h"
#include "fsdp/unit/advisor.h"
#include "fsdp/unit/deferred_error.h"
#include "fsdp/unit/observer.h"
#include "fsdp/unit/options.h"
#include "fsdp/unit/unit.h"
#include "fsdp/unit/unit_state.h"

namespace fsdp {

// Drives all units of one world: on every touch and every gradient it gathers and frees weights and reduces gradients,
// as schedule::Turns decides, in an order that is the same on every rank. One Context serves one user thread and the
// autograd threads that it starts, and one device; there, what computes with the weights is given to one stream at a
// time, the current one, and streams that read them beside it must have joined it when it leaves the unit.
// docs/one_step.md walks through a step. Touches and weights: context.cpp; gradients: context_backward.cpp.
class Context : public GroupOwner, private schedule::UnitWeights, public std::enable_shared_from_this<Context> {
 public:
  // The context of `world`, made at first use; all roots of a world share it. Throws Error(kUsage) if it was made with
  // other options, or for another device.
  static std::shared_ptr<Context> of(const World& world, const ContextOptions& options, c10::Device device);
  Context(const World& world, const ContextOptions& options, c10::Device device);
  ~Context() override;

  // ---- what happens to it
  // From the observer, before an operator that reads `touches` runs. COLLECTIVE. Never throws: see DeferredError.
  void touch(c10::ArrayRef<Touch> touches, const char* operator_name) noexcept;
  // From the observer: an operator is about to write into gathered weights.
  void note_write(const Touch& touch, const char* operator_name) noexcept;
  // From the observer: an operator names the .grad of a module's parameter.
  void note_mark_use(const Touch& mark, const char* operator_name) noexcept;
  // From the observer: an operator names the .grad of a leaf.
  void note_slice_use(const Touch& slice, const char* operator_name) noexcept;
  // From the hook of parameter `index`, in backward: its gradient is complete.
  void gradient_ready(UnitState& unit, ParameterGroup& group, size_t index, const at::Tensor& parameter);
  // From an operator's backward: where it may write that gradient itself, if anywhere.
  std::optional<kernels::GradientSlot> open_gradient_slot(UnitState& unit, ParameterGroup& group, size_t index);
  void on_library_entry() override;
  void on_leaves_requested() override { leaves_requested_ = true; }
  bool ignores(const at::Tensor& parameter) const override;

  // ---- what a program asks for
  void unshard(UnitState& unit, const std::string& cause);        // COLLECTIVE
  void begin_unshard(UnitState& unit, const std::string& cause);  // COLLECTIVE; returns at once
  void reshard(UnitState& unit);
  void rest(UnitState& root);  // every unit of it
  // What a touch does between units, for explicit boundaries: the unit's forward begins (COLLECTIVE), and ends.
  void enter(UnitState& unit, const char* cause);
  void leave(UnitState& unit);
  void write_back(UnitState& unit);
  void rethrow_deferred() { error_.rethrow(); }
  // For places that may not throw: the next library entry does.
  void defer(std::exception_ptr error) override { error_.set(std::move(error)); }
  // COLLECTIVE over the ranks of a step.
  int64_t sum_over_ranks(int64_t value, const std::string& what);
  // Those that run the same operators on parameters with the same names: the world, or a stage's part of it.
  const std::shared_ptr<comm::Comm>& ranks_of_step() const override { return comm_; }
  bool spans_world() const override { return comm_->size() == world_.size; }
  // COLLECTIVE over them. Throws Error(kUsage) if there are units of other ranks.
  void set_ranks_of_step(const std::vector<int>& ranks);

  Counters& counters() { return counters_; }
  const std::shared_ptr<BufferAllocator>& allocator() const { return allocator_; }
  // For MainWeights::kOnDisk, this rank's file in the folder of the options, made at first use; else null. Throws
  // Error(kUsage) for a folder without that or that without a folder, Error(kFileSystem).
  std::shared_ptr<DiskMemory> disk_for(const ShardOptions& options);
  const std::shared_ptr<Fp8Agreement>& fp8_agreement() const { return fp8_agreement_; }
  const std::shared_ptr<comm::Lane>& gather_lane() const { return gather_lane_; }
  const std::shared_ptr<comm::Lane>& reduce_lane() const { return reduce_lane_; }
  c10::Device device() const { return device_; }
  // What the owners of whole tensors have so far, where so many are balanced (layout::Owners::kBalanced).
  layout::OwnerLoads& owner_loads(int64_t num_owners) {
    return owner_loads_.try_emplace(num_owners, num_owners).first->second;
  }
  const schedule::Schedule& schedule() const { return options_.schedule; }
  const World& world() const override { return world_; }

  void add_unit(UnitState& unit);
  void nest(UnitState& child, UnitState& parent);
  void set_units_ahead(UnitState& unit, schedule::Pass pass, std::vector<int> ids);
  void set_unused(UnitState& unit, UnusedUnit unused);
  void ignore(const std::vector<at::Tensor>& parameters);
  void remove_unit(UnitState& unit);
  const std::vector<UnitState*>& units() const { return units_; }

 private:
  struct BackwardGuard;
  struct Reduction {
    UnitState* unit;
    ParameterGroup* group;
    bool is_last;  // of the step
  };
  struct Reader {
    const char* operator_name = nullptr;
    const Touch* touch = nullptr;
  };
  using Clock = std::chrono::steady_clock;

  static bool in_graph_task();  // this thread runs a backward

  // ---- weights
  void follow(c10::ArrayRef<Touch> touches, const char* operator_name);
  void check_thread(const Touch& touch, const char* operator_name) const;
  void check_unchanged(const Touch& touch, const char* operator_name) const;
  bool in_use(const UnitState& unit) const;
  void move_to(c10::ArrayRef<Touch> touches, const char* operator_name);
  void begin_forward();
  void refuse_write(const Touch& touch, const char* operator_name);
  void settle_writes();  // COLLECTIVE if there are any
  void offer_companions(UnitState& unit);
  void poison(UnitState& unit);
  void note_live(const UnitState& unit);
  void start_unshard(UnitState& unit, const std::string& cause);
  void finish_unshard(UnitState& unit);
  void reshard(UnitState& unit, schedule::After after, const StreamPoint& end = {});
  void note_left_units();
  void rest_all();
  void check_moved_tensors() const;
  void count_gathered(int64_t change);
  void begin_compute(const UnitState& unit);
  void end_compute();
  std::shared_ptr<TraceSink> trace_of_program();

  // ---- weights, for Turns
  UnitState& unit_of(int id) const { return *units_[static_cast<size_t>(id)]; }
  bool current(int id) const override;
  bool may_gather_ahead(int id) const override;
  int64_t bytes_to_gather(int id) const override;
  int gathers_in_flight(int id) const override;
  bool may_reshard(int id, schedule::TurnEnd end) const override;
  void start_gather(int id, schedule::Cause cause) override;
  void finish_gather(int id) override { finish_unshard(unit_of(id)); }
  void reshard(int id, schedule::After after) override { reshard(unit_of(id), after, unit_of(id).left); }

  // ---- gradients
  void enter_backward();
  void mark_gradients();
  bool reduces_now(const UnitState& unit, const ParameterGroup& group) const;
  Collect collect_of(const UnitState& unit, const ParameterGroup& group) const;
  void make_room_to_collect(ParameterGroup& group);
  void start_reduce(UnitState& unit, ParameterGroup& group);
  void note_collective(const UnitState& unit, char kind);
  void forget_collectives();
  void finish_oldest_reduce();
  void finish_backward();
  void reduce_leftovers();
  UnitState* find_forbidden_absence() const;
  void sync_buffers_of_roots();
  void average_ignored_gradients();
  void agree_on_step();
  void agree_on_arrivals(const std::vector<ParameterGroup*>& groups);
  void check_optimizer_mistake();
  void abandon_backward();
  // Of the backward that this flag belongs to, which threw. Where the program can be about to hear of it.
  void give_up_backward(const std::shared_ptr<std::atomic<bool>>& aborted) noexcept;
  std::vector<ParameterGroup*> trainable_groups_of_this_backward() const;

  World world_;
  ContextOptions options_;
  c10::Device device_;
  std::shared_ptr<comm::Comm> comm_;  // of a step
  std::shared_ptr<BufferAllocator> allocator_;
  std::map<std::filesystem::path, std::shared_ptr<DiskMemory>> disks_;
  std::shared_ptr<Fp8Agreement> fp8_agreement_ = std::make_shared<Fp8Agreement>();
  std::shared_ptr<comm::Lane> gather_lane_;  // null in a world of one on the CPU; both the same where unified
  std::shared_ptr<comm::Lane> reduce_lane_;
  std::thread::id user_thread_;
  std::shared_ptr<TraceSink> trace_;  // where the program's own thread traces
  std::vector<UnitState*> units_;     // null where one was destroyed
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> ignored_;
  std::map<int64_t, layout::OwnerLoads> owner_loads_;  // by their number
  schedule::Turns turns_;
  bool records_graph_ = false;     // the operator that is about to run does
  Reader reader_;                  // likewise: what it reads first
  std::deque<Reduction> reduces_;  // in flight, oldest first
  bool has_companions_ = false;    // a unit is UnusedUnit::kZeros

  const UnitState* computing_ = nullptr;  // its compute range is being traced
  Clock::time_point compute_begin_;
  uint64_t shown_ = 0;  // likewise, to a profiler

  bool in_backward_ = false;
  std::shared_ptr<std::atomic<bool>> backward_aborted_;  // of that backward; written from its threads
  bool reduced_in_backward_ = false;
  uint64_t collectives_digest_ = 0;  // of what this rank gathered and reduced since the ranks last agreed
  uint64_t gather_order_ = 0;        // likewise, of the order of gathers and of reductions; on a device
  uint64_t reduce_order_ = 0;
  int64_t backwards_with_reduces_ = 0;
  bool leaves_requested_ = false;

  DeferredError error_;
  std::vector<Touch> pending_writes_;  // by operators of the model, which the ranks do not share yet
  Counters counters_;
  Advisor advisor_;
};

}  // namespace fsdp
