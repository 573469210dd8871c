#include "fsdp/group/parameter_group.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/trace.h"
#include "fsdp/group/registry.h"

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
      owner_(std::move(spec.owner)) {
  for (const at::Tensor& parameter : spec.parameters) {
    sizes_.push_back(parameter.sizes().vec());
    parameters_.emplace_back(parameter.getIntrusivePtr());
  }
  make_buffers(spec.parameters, spec.precision);
  adopt_parameters(spec.parameters);
  make_leaves(spec.precision);
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
    const layout::Range slice = sharded ? layout_->slice_of(rank, i) : layout::Range{0, layout_->numels[i]};
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

void ParameterGroup::make_leaves(const Precision& precision) {
  for (size_t i = 0; i < num_parameters(); ++i) {
    leaves_.push_back(main_weight_.part(i).detach().requires_grad_(trainable_));
  }
  if (!trainable_) return;
  const at::Tensor& main = main_weight_.local();
  gradients_.emplace(GradientSpec{layout_, main_weight_.placement(), main.options(),
                                  precision.reduce.value_or(main.scalar_type()), traits_, comm_, slabs_, leaves_});
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

void ParameterGroup::note_forward_use(size_t i) {
  if (trainable_) gradients_->note_use(i);
  used_revision_ = main_weight_revision();
}

void ParameterGroup::distrust_unsharded() {
  unsharded_revision_ = kNoRevision;
  if (residence_ == Residence::kPersistent) model_revision_ = kNoRevision;
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

}  // namespace fsdp
