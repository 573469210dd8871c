// 164 lines because the gradient half of a group has one life cycle.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/buffer/dbuffer.h"
#include "fsdp/buffer/disk_memory.h"
#include "fsdp/buffer/disk_window.h"
#include "fsdp/buffer/scratch.h"
#include "fsdp/group/all_reduce_hook.h"
#include "fsdp/group/grad_scale.h"
#include "fsdp/group/group_links.h"
#include "fsdp/group/phase.h"
#include "fsdp/group/sum_tree.h"
#include "fsdp/strategy/strategy.h"
#include "fsdp/strategy/sum_order.h"
#include "kernels/base/gradient_slot.h"

namespace fsdp {

// Where the gradients of a group go.
struct GradientSpec {
  std::shared_ptr<const layout::FlatLayout> layout;       // over the ranks of links.shard
  std::shared_ptr<const layout::FlatLayout> main_layout;  // of the main grad: that of the main weight
  Placement main_placement = Placement::kShard;           // likewise, and the two below
  int main_index = 0;
  at::TensorOptions sum_options;  // of sums over the ranks: the main weight's dtype, the device of the gathered weights
  at::TensorOptions main_options;  // of the main grad
  at::ScalarType reduce_dtype = at::kFloat;
  at::ScalarType accumulate_dtype = at::kFloat;
  StrategyTraits traits;
  SumOrder sum_order = SumOrder::kAsTheyCome;
  GroupLinks links;
  std::shared_ptr<BufferAllocator> allocator;
  int part = 0;  // of the unit
  // Gradients are collected where their sums go, because there is nobody to add them up with and no dtype between: no
  // buffer, no pass over it. What a backward that throws has added stays, as in an unsharded model.
  bool in_main_grad = false;
  std::vector<at::Tensor> leaves;    // get .grad
  std::shared_ptr<DiskMemory> disk;  // not null: the main grad is there
};

// Whether a gradient waits in its buffer for a later microbatch or goes out with this one.
enum class Collect { kForThisReduce, kAcrossMicrobatches };

// Whether a reduction ends with this rank's shard group, or goes on over the replicas.
enum class ReduceReach { kShardGroup, kAllReplicas };

// Whether microbatches of this step come after the one at hand.
enum class StepPlace { kInside, kEnd };

// The gradient half of a parameter group: what arrived in this backward, the reduce buffer it is collected in (all of
// it, on this rank), the partial sums of this rank's shard group where there are replicas, and the main grad that the
// reduction adds to. Local unless marked COLLECTIVE. Driven by a Context, one thread at a time.
class GradientBuffers {
 public:
  explicit GradientBuffers(GradientSpec spec);
  // Gives a reduction in flight up.
  ~GradientBuffers();
  GradientBuffers(const GradientBuffers&) = delete;
  GradientBuffers& operator=(const GradientBuffers&) = delete;

  const DBuffer& main_grad() const { return main_grad_; }
  GradPhase phase() const { return phase_.value(); }
  int64_t reduce_buffer_bytes() const { return spec_.in_main_grad ? 0 : reduce_buffer_.bytes(); }
  // In memory now, of what is collected and on its way.
  int64_t resident_bytes() const;

  // ---- what the forward read
  // In the forward whose graph brings the gradient, or in a backward that computes it again.
  enum class UseAt { kForward, kBackward };
  void note_use(size_t i, UseAt at);
  bool used() const;
  void forget_use();
  // How often each parameter was read. What is taken is forgotten here.
  std::vector<uint8_t> take_uses();
  void put_uses(std::vector<uint8_t> uses) { uses_ = std::move(uses); }

  // ---- what the backward brings
  void begin_backward();
  // Moves `gradient` of parameter i, scaled, into the buffer; adds to one that is there.
  void add(size_t i, const at::Tensor& gradient, const ReductionFactors& factors, Collect collect);
  // Where an operator may write the gradient of parameter i, scaled, itself, before it is add()ed: nothing where
  // several gradients make one, or where what is collected is not fp32. begin_collecting() as add() does.
  std::optional<kernels::GradientSlot> open_slot(size_t i, const ReductionFactors& factors, Collect collect);
  // Whether one was given out whose gradient has not been add()ed.
  bool has_open_slot() const;
  // Every parameter that the forward read has its gradient.
  bool complete() const;
  bool arrived_in_backward() const;

  // ---- reduction
  // COLLECTIVE. Sum over the ranks, into the main grad: overwrites an empty one, adds to others. With
  // ReduceReach::kShardGroup where there are replicas, into the partial sums; with SumOrder::kTree and
  // StepPlace::kInside into those of the tree. Returns the bytes that this rank will receive. `unit` names it in
  // messages.
  int64_t start_reduce(const std::string& unit, const ReductionFactors& factors, ReduceReach reach, StepPlace place);
  void finish_reduce(const std::string& unit);
  // Sums of earlier microbatches that are not in the main grad yet.
  bool has_partial_sums() const { return partial_.resident() || !reduced_.empty() || !waiting_.empty(); }
  // Which parameters had a gradient since the last publish(), one byte each.
  std::vector<uint8_t>& arrived() { return arrived_; }
  // Gives the leaves of parameters that arrived their .grad.
  void publish();
  // Called with each sum that is to be published, on the program's thread, when its reduction is waited for; empty:
  // none. Throws Error(kUsage) where gradients wait in the main grad itself. `unit` names it there.
  void set_all_reduce_hook(AllReduceHook hook, const std::string& unit);
  // Throws away what was collected.
  void drop();
  // Whether parameter i has a gradient that waits in a buffer for a later microbatch.
  bool waits(size_t i) const;
  // Throws that away, of parameter i alone.
  void forget(size_t i);
  // Whether the main grad is used up as soon as it is there: such a one is not sent to the disk.
  void set_passing(bool passing) { passes_ = passing; }
  // Resets the leaves' .grad and returns the main grad's memory.
  void free_main_grad();

 private:
  void begin_collecting(const ReductionFactors& factors, Collect collect);
  DBuffer& collected_in();
  void put_in_tree();
  comm::Job make_reduction(const std::string& unit, ReduceReach reach, int64_t* bytes);
  void fill_missing(DBuffer& buffer);
  void narrow_to_reduce_dtype();
  comm::Accumulate prepare_main_grad();
  void make_main_grad();
  void finish_disk_writes() const;
  comm::Job after_window(comm::Job job) const;
  std::pair<at::Tensor, comm::Accumulate> prepare_outcome();  // where a reduction writes, and how
  void take_outcome();
  at::Tensor take_staging();
  comm::Job reduce_in_shard_group(const at::Tensor& staging, const std::string& unit);
  comm::Job reduce_to_all(const at::Tensor& staging, const std::string& unit);
  comm::Job reduce_into_tree(const at::Tensor& staging, const std::string& unit);
  bool is_tree() const { return spec_.sum_order == SumOrder::kTree; }
  // Of parameter i in this rank's shard of a sum.
  layout::Range shard_range(size_t i) const;
  void add_replica_stages(comm::Job& job, const at::Tensor& staging, const std::string& unit);
  void release_reduce_memory();
  void show_gradient(size_t i);

  GradientSpec spec_;
  bool has_replicas_;
  bool passes_ = false;
  DBuffer main_grad_;  // made by the first reduction
  std::vector<at::Tensor> grad_slices_;
  DBuffer reduce_buffer_;
  DBuffer wide_buffer_;   // in the accumulate dtype; defined only where that differs from the reduce dtype
  DBuffer partial_;       // defined only where there are replicas
  SumTree waiting_;       // SumOrder::kTree: of microbatches that were not reduced, all of each
  SumTree reduced_;       // likewise: shards of those that were
  Scratch replica_wire_;  // the partial sums in the reduce dtype, while they travel
  Scratch staging_;
  DiskWindow main_window_;  // of a main grad on a disk, while a reduction writes there
  Scratch outcome_;  // a sum apart from the main grad: that is elsewhere, of another dtype, or not for a hook to see
  AllReduceHook all_reduce_hook_;
  bool has_outcome_ = false;   // the reduction in flight ends in the main grad
  bool outcome_adds_ = false;  // to what is there
  double after_ = 1;           // what is collected, and partial sums, lack this factor
  PhaseOf<GradPhase> phase_{GradPhase::kEmpty};
  comm::Completion reduce_;
  bool releases_partial_ = false;       // when the reduction in flight is done
  bool ends_tree_ = true;               // that reduction takes what is in reduced_; else it leaves its sum there
  bool reduced_since_publish_ = false;  // the main grad holds sums that the leaves do not show yet
  std::vector<uint8_t> uses_;           // how often read in forwards since the last backward: 0, 1, or 2 for more
  std::vector<bool> placed_;            // has a gradient in the buffer
  std::vector<bool> written_;           // got one through its slot that was not add()ed yet
  std::vector<bool> this_pass_;         // got a gradient in the running backward
  std::vector<bool> had_gradient_;      // which leaves, when the first reduction after publish() began
  std::vector<uint8_t> arrived_;
};

}  // namespace fsdp
