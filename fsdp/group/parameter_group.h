// 234 lines because a group is weights and gradients with one life cycle.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/buffer/dbuffer.h"
#include "fsdp/buffer/scratch.h"
#include "fsdp/group/gradient_buffers.h"
#include "fsdp/group/gradient_marks.h"
#include "fsdp/group/group_spec.h"
#include "fsdp/group/host_weights.h"
#include "fsdp/group/phase.h"
#include "fsdp/precision/fp8_wire.h"

namespace fsdp {

// The parameters of one unit that share mesh, dtype, trainability and layout, and all flat buffers of theirs:
//   main_weight   what the optimizer updates; sharded (replicated under no_shard)
//   model_weight  what is gathered: the same buffer, or a copy in the compute dtype, or (main weight sharded over the
//                 replicas too) this shard group's part of all of them
//   unsharded     the gathered weights; the module's parameters are views of it, set once, for ever
// and, where they are trainable, their gradients (group/gradient_buffers.h).
// Driven by a Context, which calls in the order that group/phase.h allows. One thread at a time.
// parameter_group.cpp; gathers and their end: parameter_group_gather.cpp; writes: parameter_group_writes.cpp.
// After: Megatron-FSDP experimental/parameter_group.py; PyTorch FSDP2's FSDPParamGroup.
class ParameterGroup : public std::enable_shared_from_this<ParameterGroup> {
 public:
  explicit ParameterGroup(GroupSpec spec);
  ~ParameterGroup();
  ParameterGroup(const ParameterGroup&) = delete;
  ParameterGroup& operator=(const ParameterGroup&) = delete;

  // ---- what it is
  size_t num_parameters() const { return names_.size(); }
  const std::string& unit_name() const { return unit_name_; }
  const std::string& parameter_name(size_t i) const { return names_[i]; }
  const std::vector<int64_t>& sizes(size_t i) const { return sizes_[i]; }
  // One name for each parameter.
  void rename(std::string unit_name, std::vector<std::string> names);
  Residence residence() const { return residence_; }
  const StrategyTraits& strategy_traits() const { return traits_; }
  SumOrder sum_order() const { return sum_order_; }
  const layout::FlatLayout& layout() const { return *layout_; }
  const GroupLinks& links() const { return links_; }
  // The part of parameter i that this rank's optimizer owns.
  layout::Range main_slice(size_t i) const;
  // Borders between the parts of the main weight cut parameter i, if at all, at multiples of `granule` elements.
  bool is_cut_only_at(size_t i, int64_t granule) const;
  // This rank has all of the main weight, and of its gradient.
  bool whole_main_weight() const;
  // No other rank trains these parameters.
  bool is_alone() const { return links_.shard->size() == 1 && links_.replicate == nullptr; }
  // The groups of ranks over which the main weight is sharded, for sums over all of it.
  std::vector<std::shared_ptr<comm::Comm>> main_weight_comms() const;
  // Null once the model is gone; an optimizer may outlive it.
  std::shared_ptr<GroupOwner> owner() { return owner_.lock(); }
  // Index of the parameter that holds element `offset` of the unsharded buffer.
  size_t parameter_at(int64_t offset) const;
  // Whether `parameter` still is a view of the unsharded buffer.
  bool holds(const at::Tensor& parameter) const;
  // Whether `tensor` is the module's parameter i, not only its data.
  bool is_parameter(size_t i, const at::Tensor& tensor) const;
  // Name of the first parameter whose data is no longer in the unsharded buffer (Module::to, clone, load), if any.
  std::optional<std::string> find_moved_parameter() const;
  static std::string moved_message(const std::string& name);
  // Throws Error(kUsage) if a leaf's data is no longer in the main weight (set_data, vector_to_parameters).
  void check_leaves() const;

  // ---- weights
  const DBuffer& unsharded() const { return unsharded_; }
  const DBuffer& main_weight() const { return main_weight_; }
  // Bytes of a low-precision or per-shard-group copy that rests beside the main weight.
  int64_t resting_copy_bytes() const;
  // Bytes of gathered weights in memory now, of those that come and go, and of what they travel as.
  int64_t gathered_bytes() const;
  // The main weight and its gradient are in memory of the host, the gathered weights elsewhere.
  bool is_on_host() const { return is_on_host_; }
  // Null unless main weight and gradient are on a disk: where states of an optimizer belong too.
  const std::shared_ptr<DiskMemory>& disk() const { return disk_; }
  // Undefined, or the low-precision copy of this rank's main weight. An optimizer may write it together with the main
  // weight and then calls set_model_weight_current().
  at::Tensor model_weight_copy() const;
  // To be called before anything writes the main weight; where that is shared, returns when no rank reads the old one
  // any more. Throws Error(kCommunication). COLLECTIVE in so far as all ranks must come to a write.
  void begin_main_weight_write();
  // Whether an optimizer may write the copy together with the main weight now: it is bf16, fp16 or fp32, and was up to
  // date. Other ranks of the host may have to finish reading first. Then, and always where the main weight is shared,
  // the optimizer calls set_model_weight_current() and, at the end, publish_model_weight().
  bool begin_model_weight_write();
  void set_model_weight_current();
  void publish_model_weight();
  // The main weight has changed, or is about to: this rank reads the old weights no more.
  void finish_reading_stale_weights();
  // Somebody wrote the main weight through its pointer: that of one parameter, or of all.
  void note_raw_main_weight_write(std::optional<size_t> parameter = std::nullopt);
  bool model_weight_is_current() const { return model_revision_ == main_weight_revision(); }
  // From the observer, before the write; undefined: of none that autograd has to hear of. Version counters alone do not
  // tell: torch::optim::SGD writes through Tensor::data(), which has its own.
  void note_main_weight_write(const at::Tensor& written) noexcept;
  // The same where the main weight is the unsharded one, and its revision shows the write.
  void note_leaf_write(size_t parameter) { was_written_[parameter] = 1; }
  // A forward reads the group, whether a graph is recorded or not.
  void note_touch_in_forward();
  WeightPhase weight_phase() const { return weight_phase_.value(); }
  bool current() const;  // unsharded, and no optimizer wrote since
  // COLLECTIVE unless aliased. Starts to bring the unsharded buffer to the main weight's present values. Returns the
  // bytes that this rank will receive (or copy, where its own shard is all there is); 0 where nothing is to do.
  int64_t start_unshard(const std::string& cause);
  void finish_unshard();
  // On a device: what optimizers did to the main weight so far ends before `here`.
  void note_written(const StreamPoint& here);
  // On a device what reads the weights ends before `end`; without one, before what the current stream is given next.
  void reshard(const StreamPoint& end = {});
  // After a forward whose backward comes: keeps this rank's part between the ranks of links.forward, if there are any.
  void reshard_to_forward_group(const StreamPoint& end = {});
  int64_t forget_forward_shard();  // returns its bytes
  void set_forward_group(std::shared_ptr<comm::Comm> comm) { links_.forward = std::move(comm); }
  // A forward that records its graph read parameter i, with these values: the backward must find them again. A
  // parameter that needs no gradient may still be read there when all gradients have arrived.
  void note_forward_use(size_t i, bool needs_gradient, GradientBuffers::UseAt at);
  bool read_without_gradient() const { return read_without_gradient_; }
  void forget_use();
  // What forwards read since, for a backward that is not the next one: put back before that. Taken, it is forgotten
  // here.
  struct Use {
    std::vector<uint8_t> of_parameters;
    bool without_gradient = false;
  };
  Use take_use() { return {gradients_->take_uses(), std::exchange(read_without_gradient_, false)}; }
  void put_use(Use use) {
    gradients_->put_uses(std::move(use.of_parameters));
    read_without_gradient_ = use.without_gradient;
  }
  // Whether an optimizer wrote since a forward read this group; `recomputes`: since one read it that is run again now,
  // of which autograd has saved nothing.
  bool changed_since_forward(bool recomputes) const {
    const int64_t revision = main_weight_revision();
    return (touched_revision_ >= 0 && touched_revision_ != revision) ||
           (recomputes && used_revision_ >= 0 && used_revision_ != revision);
  }
  // What was written into the unsharded buffer is thrown away at its next use, or becomes the main weight (current()).
  void distrust_unsharded();
  // What is about to be written is this rank's alone.
  void isolate_unsharded();
  void write_back();
  // As write_back(), of a write that belongs to the forward: what that read of other parameters is what its backward
  // finds.
  void write_back_in_forward();
  // Parameter i, whole and gathered, for whoever may write it. 1-D.
  at::Tensor unsharded_part(size_t i) const;
  // For a gather that failed: NaN, so that nothing reads freed memory before the error is thrown. Without memory for
  // them, reads throw.
  void poison();

  // ---- gradients
  const at::Tensor& leaf(size_t i) const { return leaves_[i]; }
  GradientBuffers& gradients() { return *gradients_; }
  const GradientBuffers& gradients() const { return *gradients_; }
  // What the module's parameters have as .grad after a backward (gradient_marks.h). mark_gradients(): of those whose
  // leaf has one, or that wait for a later microbatch. heed_gradient_marks(): what the program did to them since, it
  // did to the gradients; throws Error(kUsage) where that cannot be. take_gradient_marks(): likewise, and they are
  // gone.
  GradientMarks& gradient_marks() { return marks_; }
  void mark_gradients();
  void heed_gradient_marks();
  void take_gradient_marks();
  // From the observer: the mark is being detached, so that this may be Module::zero_grad(). Its end is not seen, and a
  // torch::optim::Optimizer would find the gradient: the leaf has none until marks are heeded. Or it is zeroed.
  void suspend_gradient(size_t i) noexcept;
  void zero_gradient(size_t i) noexcept;
  // Parameters that need a gradient and have none count as having one, of zeros.
  void count_missing_gradients_as_zero();
  // An optimizer's update of this group, to be called in the backward as soon as its gradients are reduced; empty:
  // none.
  void set_update_in_backward(std::function<void()> update) {
    update_in_backward_ = std::move(update);
    gradients_->set_passing(updates_in_backward());
  }
  bool updates_in_backward() const { return update_in_backward_ != nullptr; }
  void update_in_backward();

 private:
  static constexpr int64_t kNoRevision = -1;  // differs from every revision of a main weight

  void make_buffers(const GroupSpec& spec);
  void adopt_parameters(const std::vector<at::Tensor>& parameters);
  void make_leaves(const Precision& precision);
  void make_fp8_wire(const GroupSpec& spec, at::ScalarType param_dtype);
  void share_unsharded(const at::TensorOptions& options);
  void share_main_weight();
  DBuffer resting_buffer(const std::shared_ptr<const layout::FlatLayout>& layout, Placement placement, int index,
                         const at::TensorOptions& options) const;
  void await_readers();
  void refresh_model_weight();
  void refresh_fp8_weight(int64_t revision);
  // [Note: Memory that nobody may read] Operators are seen before they read gathered weights; torch::save() and
  // data_ptr() are not. While the unsharded buffer has no memory, or not the main weight's values, they get an error.
  void refuse_access_unless_current();
  void name_access_refusal();
  void mark_written(const at::Tensor& written);
  int64_t main_weight_revision() const { return main_weight_.local()._version() + observed_writes_; }
  at::Tensor parameter(size_t i) const;  // of the module; undefined once that is gone
  void restore_gradient(size_t i);
  bool over_replicas() const { return traits_.shards_over_replicas && links_.replicate != nullptr; }
  at::Tensor own_model_weight() const;
  // Where this rank's part of the main weight begins in the unsharded buffer.
  int64_t main_begin() const { return traits_.shards_main_weight ? main_index_ * main_layout_->shard_numel : 0; }
  at::Tensor gather_source() const;
  comm::CallLabel label_of(const char* op, const std::string& cause) const { return {op, unit_name_, cause, part_}; }
  comm::Job gather_from_forward_group(const std::string& cause, int64_t* bytes);
  // Brings `source` of every rank into the unsharded buffer.
  comm::Job gather_from_disk(const at::Tensor& source, const comm::CallLabel& label);
  comm::Job gather_job(const at::Tensor& source, const comm::CallLabel& label);
  // What becomes of the main weight's part i, when it is gathered.
  at::Tensor rounded_main_weight(size_t i) const;
  comm::Job gather_from_shards(const at::Tensor& source, const std::string& cause, int64_t* bytes);
  std::vector<StreamPoint> points_before_gather(bool is_fresh, bool from_forward_group, int64_t revision);

  std::vector<std::string> names_;
  std::string unit_name_;
  std::vector<std::vector<int64_t>> sizes_;
  // Weak: the parameters own the unit (through their hooks), not the other way round.
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> parameters_;
  StrategyTraits traits_;
  GroupLinks links_;
  std::shared_ptr<const layout::FlatLayout> layout_;       // over the ranks of links_.shard
  std::shared_ptr<const layout::FlatLayout> main_layout_;  // of the main weight; finer where replicas share it
  int main_index_ = 0;
  int part_ = 0;
  SumOrder sum_order_ = SumOrder::kAsTheyCome;
  bool is_on_host_ = false;           // MainWeights::kOnHost or kOnDisk, and the device is another
  std::shared_ptr<DiskMemory> disk_;  // MainWeights::kOnDisk
  bool copies_whole_ = false;         // WholeWeights::kCopied, and there is one shard
  Residence residence_ = Residence::kReleased;
  std::shared_ptr<BufferAllocator> allocator_;
  std::weak_ptr<GroupOwner> owner_;

  DBuffer main_weight_;
  DBuffer model_weight_;  // defined only where it differs from the main weight and rests sharded
  DBuffer unsharded_;
  // Null unless weights travel as fp8 numbers. Then the model weight is these, and rests beside a persistent unsharded
  // buffer too.
  std::shared_ptr<Fp8Wire> fp8_wire_;
  std::shared_ptr<Fp8Agreement> fp8_agreement_;
  Scratch arriving_;                           // the numbers of a gather that is under way
  std::shared_ptr<HostWeights> host_weights_;  // Residence::kShared
  bool shares_main_weight_ = false;            // it is this rank's part of the unsharded buffer
  c10::DataPtr shared_memory_;                 // of the unsharded buffer, while that is isolated
  bool has_finished_reading_ = false;          // since the last publication
  Scratch forward_shard_;
  std::vector<at::Tensor> leaves_;
  std::optional<GradientBuffers> gradients_;
  GradientMarks marks_;
  std::vector<at::Tensor> suspended_;  // gradients of leaves, by parameter
  std::string access_refusal_;         // its text, which names the unit
  std::function<void()> update_in_backward_;

  PhaseOf<WeightPhase> weight_phase_{WeightPhase::kResting};
  int64_t observed_writes_ = 0;
  int64_t model_revision_ = -1;       // main weight's revision when this rank's model weight was made from it
  int64_t replica_revision_ = -1;     // when the replicas' parts of it were gathered
  int64_t unsharded_revision_ = -1;   // when the unsharded buffer was
  int64_t forward_revision_ = -1;     // that of forward_shard_
  int64_t fp8_revision_ = -1;         // when the ranks agreed on its scales
  int64_t used_revision_ = -1;        // when a forward with gradients read it last
  int64_t touched_revision_ = -1;     // when any forward did
  std::vector<uint8_t> was_written_;  // by parameter: the main weight, since then
  bool read_without_gradient_ = false;
  comm::Completion gather_;
  // On a device: what a gather reads was written before these points of the computing stream.
  StreamPoint source_written_;
  int64_t source_revision_ = -1;  // the main weight's, when that point was taken
  StreamPoint forward_shard_written_;
};

}  // namespace fsdp
