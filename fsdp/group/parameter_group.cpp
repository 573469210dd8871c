#include "fsdp/group/parameter_group.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/trace.h"
#include "fsdp/group/registry.h"
#include "kernels/pack.h"

namespace fsdp {
namespace {

// Differs from every revision of a main weight.
constexpr int64_t kNoRevision = -1;

Residence choose_residence(const StrategyTraits& traits, int num_shards, bool same_dtype) {
  const bool main_weight_is_whole = !traits.shards_main_weight || num_shards == 1;
  if (main_weight_is_whole) return same_dtype ? Residence::kAliased : Residence::kPersistent;
  return traits.gather == GatherTiming::kPerStep ? Residence::kPersistent : Residence::kReleased;
}

}  // namespace

ParameterGroup::ParameterGroup(GroupSpec spec)
    : names_(std::move(spec.names)),
      unit_name_(std::move(spec.unit_name)),
      layout_(std::move(spec.layout)),
      traits_(traits(spec.strategy)),
      trainable_(spec.parameters.front().requires_grad()),
      comm_(std::move(spec.comm)),
      slabs_(std::move(spec.slabs)),
      owner_(spec.owner) {
  const size_t count = names_.size();
  used_.assign(count, false);
  placed_.assign(count, false);
  this_pass_.assign(count, false);
  arrived_.assign(count, 0);
  for (const at::Tensor& parameter : spec.parameters) {
    sizes_.push_back(parameter.sizes().vec());
    parameters_.emplace_back(parameter.getIntrusivePtr());
  }
  make_buffers(spec.parameters, spec.precision);
  adopt_parameters(spec.parameters);
  make_leaves();
}

ParameterGroup::~ParameterGroup() { registry::forget(*this); }

void ParameterGroup::make_buffers(const std::vector<at::Tensor>& parameters, const Precision& precision) {
  const at::ScalarType main_dtype = parameters.front().scalar_type();
  const at::ScalarType param_dtype = precision.param.value_or(main_dtype);
  const auto options = parameters.front().options().requires_grad(false);
  const int rank = comm_->rank();
  const bool sharded = traits_.shards_main_weight;
  const Placement placement = sharded ? Placement::kShard : Placement::kReplicate;
  residence_ = choose_residence(traits_, comm_->size(), param_dtype == main_dtype);

  main_weight_ = DBuffer(layout_, placement, rank, options, Backing::kOwned);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const layout::Range slice =
        sharded ? layout_->slice_of(rank, i) : layout::Range{0, layout_->numels[i]};
    main_weight_.part(i).copy_(parameters[i].detach().view({-1}).narrow(0, slice.begin, slice.size()));
  }
  if (residence_ == Residence::kAliased) {
    unsharded_ = main_weight_;
    weight_phase_ = PhaseOf<WeightPhase>(WeightPhase::kUnsharded);
  } else {
    const Backing backing = residence_ == Residence::kPersistent ? Backing::kOwned : Backing::kSlab;
    unsharded_ = DBuffer(layout_, Placement::kReplicate, rank, options.dtype(param_dtype), backing);
    if (residence_ == Residence::kReleased && param_dtype != main_dtype) {
      model_weight_ = DBuffer(layout_, Placement::kShard, rank, options.dtype(param_dtype), Backing::kOwned);
    }
  }
  if (!trainable_) return;
  const auto reduce_options = options.dtype(precision.reduce.value_or(main_dtype));
  reduce_buffer_ = DBuffer(layout_, Placement::kPartial, rank, reduce_options, Backing::kSlab);
}

void ParameterGroup::adopt_parameters(const std::vector<at::Tensor>& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor parameter = parameters[i];
    if (unsharded_.resident()) {
      parameter.set_data(unsharded_.part(i).view(sizes_[i]));
    } else {
      // A view of a buffer without memory cannot be made through the checks of narrow() and view().
      at::Tensor view = at::empty({0}, unsharded_.local().options());
      view.unsafeGetTensorImpl()->set_storage_keep_dtype(unsharded_.local().storage());
      view.unsafeGetTensorImpl()->set_sizes_contiguous(sizes_[i]);
      view.unsafeGetTensorImpl()->set_storage_offset(layout_->offsets[i]);
      parameter.set_data(view);
    }
  }
}

void ParameterGroup::make_leaves() {
  for (size_t i = 0; i < num_parameters(); ++i) {
    leaves_.push_back(main_weight_.part(i).detach().requires_grad_(trainable_));
  }
}

void ParameterGroup::prefix_names(const std::string& unit_name, const std::string& prefix) {
  unit_name_ = unit_name;
  for (std::string& name : names_) name = prefix + name;
}

size_t ParameterGroup::parameter_at(int64_t offset) const {
  const auto next = std::upper_bound(layout_->offsets.begin(), layout_->offsets.end(), offset);
  return next == layout_->offsets.begin() ? 0 : static_cast<size_t>(next - layout_->offsets.begin()) - 1;
}

bool ParameterGroup::holds(const at::Tensor& parameter) const {
  return parameter.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
         unsharded_.local().storage().unsafeGetStorageImpl();
}

std::optional<std::string> ParameterGroup::find_moved_parameter() const {
  const c10::StorageImpl* ours = unsharded_.local().storage().unsafeGetStorageImpl();
  for (size_t i = 0; i < num_parameters(); ++i) {
    const auto parameter = parameters_[i].lock();
    if (parameter && parameter->unsafe_storage().unsafeGetStorageImpl() != ours) return names_[i];
  }
  return std::nullopt;
}

// ---- weights

at::Tensor ParameterGroup::model_weight_copy() const {
  if (model_weight_.defined()) return model_weight_.local();
  if (residence_ != Residence::kPersistent || unsharded_.local().scalar_type() == main_weight_.local().scalar_type()) {
    return {};
  }
  return whole_main_weight() ? unsharded_.local() : unsharded_.own_slice();
}

void ParameterGroup::set_model_weight_current() {
  model_revision_ = main_weight_revision();
  // Where nothing is gathered, the copy is the unsharded weight.
  if (residence_ == Residence::kPersistent && whole_main_weight()) unsharded_revision_ = model_revision_;
}

bool ParameterGroup::whole_main_weight() const { return !traits_.shards_main_weight || comm_->size() == 1; }

bool ParameterGroup::current() const {
  if (residence_ == Residence::kAliased) return true;
  return weight_phase() == WeightPhase::kUnsharded && unsharded_revision_ == main_weight_revision();
}

// What this rank contributes to a gather: [S]; undefined where every rank has all of it.
at::Tensor ParameterGroup::gather_source() const {
  if (model_weight_.defined()) return model_weight_.local();
  if (residence_ == Residence::kReleased) return main_weight_.local();
  return whole_main_weight() ? at::Tensor() : unsharded_.own_slice();
}

void ParameterGroup::refresh_model_weight() {
  const int64_t revision = main_weight_revision();
  if (model_revision_ == revision) return;
  if (model_weight_.defined()) {
    model_weight_.local().copy_(main_weight_.local());
  } else if (residence_ == Residence::kPersistent) {
    const at::Tensor source = gather_source();
    writable(source.defined() ? source : unsharded_.local()).copy_(main_weight_.local());
  }
  model_revision_ = revision;
}

int64_t ParameterGroup::start_unshard(const std::string& cause) {
  if (current() || weight_phase() == WeightPhase::kUnsharding) return 0;
  const TraceScope trace("unshard", unit_name_);
  refresh_model_weight();
  if (!unsharded_.resident()) unsharded_.reallocate(*slabs_);
  weight_phase_.change_to(WeightPhase::kUnsharding);
  unsharded_revision_ = main_weight_revision();
  const at::Tensor source = gather_source();
  if (!source.defined()) return 0;
  gather_ = unsharded_.all_gather_from(source, *comm_, {"gather", unit_name_, cause});
  return unsharded_.bytes() / comm_->size() * (comm_->size() - 1);
}

void ParameterGroup::finish_unshard() {
  if (weight_phase() != WeightPhase::kUnsharding) return;
  const TraceScope trace("wait gather", unit_name_);
  weight_phase_.change_to(WeightPhase::kUnsharded);
  try {
    gather_.wait();
  } catch (...) {
    unsharded_revision_ = kNoRevision;
    throw;
  }
}

void ParameterGroup::reshard() {
  if (residence_ != Residence::kReleased || weight_phase() == WeightPhase::kResting) return;
  finish_unshard();
  const TraceScope trace("reshard", unit_name_);
  unsharded_.release(*slabs_);
  weight_phase_.change_to(WeightPhase::kResting);
}

void ParameterGroup::poison() {
  if (residence_ == Residence::kAliased) return;
  if (!unsharded_.resident()) unsharded_.reallocate(*slabs_);
  writable(unsharded_.local()).fill_(std::numeric_limits<double>::quiet_NaN());
  if (weight_phase() == WeightPhase::kResting) weight_phase_.change_to(WeightPhase::kUnsharding);
  if (weight_phase() == WeightPhase::kUnsharding) weight_phase_.change_to(WeightPhase::kUnsharded);
  gather_ = {};
  unsharded_revision_ = kNoRevision;
}

// ---- gradients

bool ParameterGroup::used() const { return std::find(used_.begin(), used_.end(), true) != used_.end(); }

void ParameterGroup::forget_use() { std::fill(used_.begin(), used_.end(), false); }

void ParameterGroup::begin_backward() { std::fill(this_pass_.begin(), this_pass_.end(), false); }

void ParameterGroup::add_gradient(size_t i, const at::Tensor& gradient, double scale) {
  FSDP_CHECK(gradient.layout() == at::kStrided, "[backward] gradient of '", names_[i],
             "': got a sparse tensor, expected a dense one. Build the embedding with sparse=false.");
  FSDP_ASSERT(gradient.numel() == layout_->numels[i], names_[i], ": gradient of ", gradient.numel(), " elements");
  if (grad_phase() == GradPhase::kReducing) finish_reduce();
  if (grad_phase() == GradPhase::kEmpty) {
    reduce_buffer_.reallocate(*slabs_);
    grad_phase_.change_to(GradPhase::kCollecting);
  }
  kernels::pack_gradient(reduce_buffer_.part(i), gradient, scale, placed_[i]);
  placed_[i] = true;
  this_pass_[i] = true;
  arrived_[i] = 1;
}

bool ParameterGroup::gradients_complete() const {
  bool any = false;
  for (size_t i = 0; i < num_parameters(); ++i) {
    if (used_[i] && !this_pass_[i]) return false;
    any = any || used_[i];
  }
  return any;
}

// Parameters without a gradient, and the padding, contribute zeros.
void ParameterGroup::fill_missing_gradients() {
  const at::Tensor& buffer = reduce_buffer_.local();
  int64_t end = 0;
  for (size_t i = 0; i < num_parameters(); ++i) {
    const int64_t begin = layout_->offsets[i];
    if (begin > end) buffer.narrow(0, end, begin - end).zero_();
    end = begin + layout_->numels[i];
    if (!placed_[i]) reduce_buffer_.part(i).zero_();
  }
  if (buffer.numel() > end) buffer.narrow(0, end, buffer.numel() - end).zero_();
}

// Leaves' .grad decides: the main grad counts as empty where it is undefined, which is what zero_grad() makes of it.
comm::Accumulate ParameterGroup::prepare_main_grad() {
  if (!main_grad_.defined()) {
    main_grad_ = DBuffer(layout_, main_weight_.placement(), comm_->rank(), main_weight_.local().options(), Backing::kOwned);
    for (size_t i = 0; i < num_parameters(); ++i) grad_slices_.push_back(main_grad_.part(i));
  }
  if (reduced_since_publish_) return comm::Accumulate::kAdd;
  const auto is_defined = [](const at::Tensor& leaf) { return leaf.grad().defined(); };
  if (std::none_of(leaves_.begin(), leaves_.end(), is_defined)) return comm::Accumulate::kOverwrite;
  for (size_t i = 0; i < num_parameters(); ++i) {
    const at::Tensor grad = leaves_[i].grad();
    if (!grad.defined()) {
      grad_slices_[i].zero_();
    } else if (!grad.is_same(grad_slices_[i])) {
      grad_slices_[i].copy_(grad);  // the program put a tensor of its own there
    }
  }
  return comm::Accumulate::kAdd;
}

int64_t ParameterGroup::start_reduce() {
  const TraceScope trace("reduce", unit_name_);
  if (grad_phase() == GradPhase::kReducing) finish_reduce();
  if (grad_phase() == GradPhase::kEmpty) {
    reduce_buffer_.reallocate(*slabs_);
    grad_phase_.change_to(GradPhase::kCollecting);
  }
  fill_missing_gradients();
  accumulate_ = prepare_main_grad();
  reduced_since_publish_ = true;
  const int64_t staging_numel = comm_->staging_numel(layout_->shard_numel);
  staging_bytes_ = staging_numel * static_cast<int64_t>(reduce_buffer_.local().element_size());
  at::Tensor staging;
  if (staging_bytes_ > 0) {
    staging_ = slabs_->take(staging_bytes_);
    staging = at::from_blob(staging_.get(), {staging_numel}, reduce_buffer_.local().options());
  }
  const comm::CallLabel label{"reduce", unit_name_, ""};
  if (traits_.reduce == ReduceKind::kAllReduce) {
    reduce_ = comm_->all_reduce(reduce_buffer_.local(), staging, label);
  } else {
    reduce_ = comm_->reduce_scatter(reduce_buffer_.local(), main_grad_.local(), staging, accumulate_, label);
  }
  grad_phase_.change_to(GradPhase::kReducing);
  const int64_t passes = traits_.reduce == ReduceKind::kAllReduce ? 2 : 1;
  return passes * reduce_buffer_.bytes() / comm_->size() * (comm_->size() - 1);
}

void ParameterGroup::finish_reduce() {
  if (grad_phase() != GradPhase::kReducing) return;
  const TraceScope trace("wait reduce", unit_name_);
  reduce_.wait();
  if (traits_.reduce == ReduceKind::kAllReduce) {
    const at::Tensor& sum = reduce_buffer_.local();
    accumulate_ == comm::Accumulate::kAdd ? main_grad_.local().add_(sum) : main_grad_.local().copy_(sum);
  }
  release_reduce_memory();
}

void ParameterGroup::release_reduce_memory() {
  reduce_buffer_.release(*slabs_);
  if (staging_bytes_ > 0) slabs_->give_back(std::move(staging_), staging_bytes_);
  staging_bytes_ = 0;
  std::fill(placed_.begin(), placed_.end(), false);
  grad_phase_.change_to(GradPhase::kEmpty);
}

void ParameterGroup::publish_gradients() {
  if (!reduced_since_publish_) return;
  for (size_t i = 0; i < num_parameters(); ++i) {
    if (arrived_[i] != 0) leaves_[i].mutable_grad() = grad_slices_[i];
    arrived_[i] = 0;
  }
  reduced_since_publish_ = false;
}

void ParameterGroup::drop_gradients() {
  if (grad_phase() == GradPhase::kReducing) finish_reduce();
  if (grad_phase() == GradPhase::kCollecting) release_reduce_memory();
  std::fill(arrived_.begin(), arrived_.end(), 0);
  reduced_since_publish_ = false;
}

}  // namespace fsdp
