#include "fsdp/group/parameter_group.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/group/registry.h"
#include "kernels/flat/adamw.h"

namespace fsdp {

ParameterGroup::ParameterGroup(GroupSpec spec)
    : names_(std::move(spec.names)),
      unit_name_(std::move(spec.unit_name)),
      traits_(traits(spec.strategy)),
      links_(std::move(spec.links)),
      part_(spec.part),
      sum_order_(spec.sum_order),
      allocator_(std::move(spec.allocator)),
      owner_(std::move(spec.owner)) {
  const int replicas = links_.replicate ? links_.replicate->size() : 1;
  layout_ = std::make_shared<const layout::FlatLayout>(spec.layout.coarsened(replicas));
  main_layout_ = over_replicas() ? std::make_shared<const layout::FlatLayout>(spec.layout) : layout_;
  main_index_ = links_.shard->rank();
  if (over_replicas()) main_index_ = main_index_ * replicas + links_.replicate->rank();
  for (const at::Tensor& parameter : spec.parameters) {
    sizes_.push_back(parameter.sizes().vec());
    parameters_.emplace_back(parameter.getIntrusivePtr());
  }
  const bool is_on_disk = spec.main_weights == MainWeights::kOnDisk;
  if (is_on_disk) disk_ = std::move(spec.disk);
  copies_whole_ =
      (spec.whole_weights == WholeWeights::kCopied || is_on_disk) && traits_.shards_main_weight && whole_main_weight();
  make_buffers(spec);
  adopt_parameters(spec.parameters);
  make_leaves(spec.precision);
  name_access_refusal();
}

ParameterGroup::~ParameterGroup() {
  gather_.abandon();
  if (fp8_wire_) fp8_agreement_->forget(this);
  registry::forget(*this);
}

void ParameterGroup::make_buffers(const GroupSpec& spec) {
  const std::vector<at::Tensor>& parameters = spec.parameters;
  const at::ScalarType main_dtype = parameters.front().scalar_type();
  const at::ScalarType param_dtype = spec.precision.param.value_or(main_dtype);
  const auto options = parameters.front().options().device(spec.device).requires_grad(false);
  is_on_host_ = spec.main_weights != MainWeights::kOnDevice && !spec.device.is_cpu();
  auto main_options = is_on_host_ ? options.device(at::kCPU) : options;
  if (is_on_host_ && spec.device.is_cuda() && !disk_) main_options = main_options.pinned_memory(true);
  const int rank = links_.shard->rank();
  const Placement placement = traits_.shards_main_weight ? Placement::kShard : Placement::kReplicate;
  const bool is_where_computed = !is_on_host_ && !disk_;
  residence_ =
      choose_residence(traits_, {whole_main_weight() && !copies_whole_, param_dtype == main_dtype && is_where_computed,
                                 links_.host && !over_replicas() && !copies_whole_ && !disk_});

  main_weight_ = resting_buffer(main_layout_, placement, main_index_, main_options);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const layout::Range slice = main_slice(i);
    main_weight_.part(i).copy_(parameters[i].detach().view({-1}).narrow(0, slice.begin, slice.size()));
  }
  write_behind(main_weight_.local());
  if (residence_ == Residence::kAliased) {
    unsharded_ = is_alone() ? main_weight_ : main_weight_.alias();
    weight_phase_ = PhaseOf<WeightPhase>(WeightPhase::kUnsharded);
  } else if (residence_ == Residence::kShared) {
    share_unsharded(options.dtype(param_dtype));
  } else {
    const Backing backing = residence_ == Residence::kPersistent ? Backing::kOwned : Backing::kSlab;
    unsharded_ = DBuffer(layout_, Placement::kReplicate, rank, options.dtype(param_dtype), backing);
    if (residence_ == Residence::kReleased && (param_dtype != main_dtype || over_replicas() || is_on_host_)) {
      model_weight_ = resting_buffer(layout_, Placement::kShard, rank, options.dtype(param_dtype));
    }
    if (spec.precision.gather) make_fp8_wire(spec, param_dtype);
  }
}

// On the disk, where this group is there and the buffer is the host's.
DBuffer ParameterGroup::resting_buffer(const std::shared_ptr<const layout::FlatLayout>& layout, Placement placement,
                                       int index, const at::TensorOptions& options) const {
  if (!disk_ || !options.device().is_cpu()) return {layout, placement, index, options, Backing::kOwned};
  const int64_t numel = placement == Placement::kShard ? layout->shard_numel : layout->total_numel();
  return {layout, placement, index, disk_->zeros(numel, options.dtype().toScalarType())};
}

void ParameterGroup::share_unsharded(const at::TensorOptions& options) {
  const int64_t numel = layout_->total_numel();
  const auto bytes = numel * static_cast<int64_t>(c10::elementSize(options.dtype().toScalarType()));
  host_weights_ = std::make_shared<HostWeights>(links_.host, links_.host_places, links_.shard, bytes);
  const at::Tensor local = at::from_blob(
      host_weights_->data(), {numel}, [keep = host_weights_](void*) {}, options);
  unsharded_ = DBuffer(layout_, Placement::kReplicate, links_.shard->rank(), local);
  writable(unsharded_.own_slice()).copy_(main_weight_.local());
  model_revision_ = main_weight_revision();
  if (options.dtype() == main_weight_.local().dtype()) share_main_weight();
  host_weights_->publish();
}

// Two tensors over the same memory: what reads one is a touch, what writes the other waits for readers.
void ParameterGroup::share_main_weight() {
  FSDP_ASSERT(unsharded_.own_slice().nbytes() == main_weight_.local().nbytes(), "another shard than the main weight's");
  using Keep = std::shared_ptr<HostWeights>;
  main_weight_.exchange({writable(unsharded_.own_slice()).mutable_data_ptr(), new Keep(host_weights_),
                         [](void* keep) { delete static_cast<Keep*>(keep); }, unsharded_.local().device()});
  shares_main_weight_ = true;
}

void ParameterGroup::adopt_parameters(const std::vector<at::Tensor>& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
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
    const auto parameter = parameters_[i].lock();
    leaves_.push_back(main_weight_.part(i).detach().requires_grad_(parameter->requires_grad()));
  }
  was_written_.resize(num_parameters());
  const at::Tensor& main = main_weight_.local();
  GradientSpec spec;
  spec.layout = layout_;
  spec.main_layout = main_layout_;
  spec.main_placement = main_weight_.placement();
  spec.main_index = main_index_;
  spec.sum_options = main.options().device(unsharded_.local().device());
  spec.main_options = main.options().dtype(precision.main_grad.value_or(main.scalar_type()));
  spec.disk = disk_;
  if (is_on_host_ && spec.sum_options.device().is_cuda() && !disk_) {
    spec.main_options = spec.main_options.pinned_memory(true);
  }
  spec.reduce_dtype = precision.reduce.value_or(main.scalar_type());
  spec.accumulate_dtype = precision.accumulate.value_or(main.scalar_type());
  spec.traits = traits_;
  spec.sum_order = sum_order_;
  spec.links = links_;
  spec.allocator = allocator_;
  spec.part = part_;
  // On the CPU the sums of a world of one keep their bits.
  spec.in_main_grad = !main.device().is_cpu() && whole_main_weight() && links_.shard->size() == 1 && !copies_whole_ &&
                      links_.replicate == nullptr && spec.reduce_dtype == main.scalar_type() &&
                      spec.accumulate_dtype == main.scalar_type() && spec.main_options.dtype() == main.scalar_type();
  spec.leaves = leaves_;
  gradients_.emplace(std::move(spec));
  marks_ = GradientMarks(*layout_, sizes_, unsharded_.local().options());
}

layout::Range ParameterGroup::main_slice(size_t i) const {
  if (!traits_.shards_main_weight) return {0, main_layout_->numels[i]};
  return main_layout_->slice_of(main_index_, i);
}

bool ParameterGroup::is_cut_only_at(size_t i, int64_t granule) const {
  if (!traits_.shards_main_weight) return true;
  const int64_t begin = main_layout_->offsets[i], end = begin + main_layout_->numels[i];
  const int64_t part = main_layout_->shard_numel;
  if (begin == end) return true;
  for (int64_t border = (begin / part + 1) * part; border < end; border += part) {
    if ((border - begin) % granule != 0) return false;
  }
  return true;
}

std::vector<std::shared_ptr<comm::Comm>> ParameterGroup::main_weight_comms() const {
  std::vector<std::shared_ptr<comm::Comm>> comms;
  if (traits_.shards_main_weight) comms.push_back(links_.shard);
  if (over_replicas()) comms.push_back(links_.replicate);
  return comms;
}

void ParameterGroup::rename(std::string unit_name, std::vector<std::string> names) {
  unit_name_ = std::move(unit_name);
  names_ = std::move(names);
  name_access_refusal();
}

size_t ParameterGroup::parameter_at(int64_t offset) const {
  const auto next = std::upper_bound(layout_->offsets.begin(), layout_->offsets.end(), offset);
  return next == layout_->offsets.begin() ? 0 : static_cast<size_t>(next - layout_->offsets.begin()) - 1;
}

bool ParameterGroup::holds(const at::Tensor& parameter) const {
  return unsharded_.is_at(parameter.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

bool ParameterGroup::is_parameter(size_t i, const at::Tensor& tensor) const {
  return parameters_[i].lock().get() == tensor.unsafeGetTensorImpl();
}

std::optional<std::string> ParameterGroup::find_moved_parameter() const {
  for (size_t i = 0; i < num_parameters(); ++i) {
    const auto parameter = parameters_[i].lock();
    if (parameter && !unsharded_.is_at(parameter->unsafe_storage().unsafeGetStorageImpl())) return names_[i];
  }
  return std::nullopt;
}

std::string ParameterGroup::moved_message(const std::string& name) {
  return c10::str("[parameters] '", name,
                  "' left the buffer it was sharded into: Module::to(), torch::load() or set_data() gave it ",
                  "other memory. Move, convert or load a model before fully_shard(), or load with fsdp::load().");
}

void ParameterGroup::check_leaves() const {
  for (size_t i = 0; i < num_parameters(); ++i) {
    FSDP_CHECK(main_weight_.is_at(leaves_[i].unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()),
               "[parameters] the leaf of '", names_[i],
               "' left the main weight: set_data() or torch::nn::utils::vector_to_parameters() gave it other memory, "
               "which no forward reads. Write into leaves in place, with copy_() under torch::NoGradGuard.");
  }
}

// ---- weights

int64_t ParameterGroup::resting_copy_bytes() const {
  if (residence_ == Residence::kPersistent)
    return unsharded_.bytes() + (model_weight_.defined() ? model_weight_.bytes() : 0);
  if (shares_main_weight_) return 0;
  if (residence_ == Residence::kShared) return unsharded_.bytes() / links_.shard->size();  // the host has one
  return model_weight_.defined() ? model_weight_.bytes() : 0;
}

int64_t ParameterGroup::gathered_bytes() const {
  if (residence_ != Residence::kReleased) return arriving_.bytes();
  return (unsharded_.resident() ? unsharded_.bytes() : 0) + forward_shard_.bytes() + arriving_.bytes();
}

// The part of the model weight that is made from this rank's main weight.
at::Tensor ParameterGroup::own_model_weight() const {
  if (!over_replicas()) return model_weight_.local();
  const int64_t numel = main_layout_->shard_numel;
  return model_weight_.local().narrow(0, links_.replicate->rank() * numel, numel);
}

at::Tensor ParameterGroup::model_weight_copy() const {
  if (shares_main_weight_ || is_on_host_ || fp8_wire_) return {};
  if (residence_ == Residence::kShared) return unsharded_.own_slice();
  if (model_weight_.defined()) return own_model_weight();
  if (residence_ != Residence::kPersistent || unsharded_.local().scalar_type() == main_weight_.local().scalar_type()) {
    return {};
  }
  return whole_main_weight() ? unsharded_.local() : unsharded_.own_slice();
}

void ParameterGroup::begin_main_weight_write() {
  finish_unshard();  // of a gather that nobody waited for yet: it reads what is written now
  if (shares_main_weight_) await_readers();
}

bool ParameterGroup::begin_model_weight_write() {
  begin_main_weight_write();
  if (shares_main_weight_) return true;
  if (!model_weight_is_current() || shared_memory_) return false;
  const at::Tensor copy = model_weight_copy();
  if (!copy.defined() || !kernels::writes_copies_of(copy.scalar_type())) return false;
  if (residence_ == Residence::kShared) await_readers();
  unsharded_.allow_access();  // until set_model_weight_current()
  return true;
}

void ParameterGroup::finish_reading_stale_weights() {
  if (residence_ != Residence::kShared || has_finished_reading_) return;
  has_finished_reading_ = true;
  host_weights_->finish_reading();
}

void ParameterGroup::await_readers() {
  if (!std::exchange(has_finished_reading_, true)) host_weights_->finish_reading();
  host_weights_->await_readers(label_of("wait for readers", ""));
}

void ParameterGroup::publish_model_weight() {
  if (residence_ != Residence::kShared || !has_finished_reading_ || !model_weight_is_current()) return;
  has_finished_reading_ = false;
  host_weights_->publish();
}

void ParameterGroup::set_model_weight_current() {
  model_revision_ = main_weight_revision();
  // Where nothing is gathered, the copy is the unsharded weight.
  if (residence_ == Residence::kPersistent && whole_main_weight()) unsharded_revision_ = model_revision_;
  refuse_access_unless_current();
}

bool ParameterGroup::whole_main_weight() const { return !traits_.shards_main_weight || main_layout_->num_shards == 1; }

bool ParameterGroup::current() const {
  if (residence_ == Residence::kAliased) return true;
  return weight_phase() == WeightPhase::kUnsharded && unsharded_revision_ == main_weight_revision();
}

void ParameterGroup::refuse_access_unless_current() {
  if (current()) return unsharded_.allow_access();
  if (!unsharded_.refuses_access()) unsharded_.refuse_access(access_refusal_);
}

void ParameterGroup::name_access_refusal() {
  access_refusal_ = c10::str(
      "[weights] '", unit_name_,
      "' is sharded: its parameters' memory does not hold their values now, and what asked for it is no operator. Save "
      "with fsdp::save(module, file), not torch::save(). Before a kernel that takes data_ptr(), call "
      "fsdp::touch({weight}), or hold fsdp::full_parameters(unit).");
  unsharded_.allow_access();
  refuse_access_unless_current();
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
  const bool copies = model_weight_.defined() || residence_ == Residence::kPersistent;
  if (copies) source_written_ = {};  // by what comes now
  if (fp8_wire_) {
    refresh_fp8_weight(revision);
  } else if (model_weight_.defined()) {
    own_model_weight().copy_(main_weight_.local());
  } else if (residence_ == Residence::kShared) {
    await_readers();
    if (!shares_main_weight_) writable(unsharded_.own_slice()).copy_(main_weight_.local());
  } else if (residence_ == Residence::kPersistent) {
    const at::Tensor source = gather_source();
    writable(source.defined() ? source : unsharded_.local()).copy_(main_weight_.local());
  }
  if (copies) write_behind(main_weight_.local());
  model_revision_ = revision;
  publish_model_weight();
}

void ParameterGroup::note_forward_use(size_t i, bool needs_gradient, GradientBuffers::UseAt at) {
  if (needs_gradient) {
    gradients_->note_use(i, at);
  } else {
    read_without_gradient_ = true;
  }
  used_revision_ = main_weight_revision();
}

void ParameterGroup::forget_use() {
  gradients_->forget_use();
  read_without_gradient_ = false;
}

void ParameterGroup::count_missing_gradients_as_zero() {
  for (size_t i = 0; i < num_parameters(); ++i) {
    const auto parameter = parameters_[i].lock();
    if (parameter && parameter->requires_grad()) gradients_->arrived()[i] = 1;
  }
}

void ParameterGroup::mark_gradients() {
  for (size_t i = 0; i < num_parameters(); ++i) {
    const at::Tensor parameter = this->parameter(i);
    if (parameter.defined() && (leaves_[i].grad().defined() || gradients_->waits(i))) marks_.set(i, parameter);
  }
}

void ParameterGroup::suspend_gradient(size_t i) noexcept {
  if (!leaves_[i].grad().defined()) return;
  suspended_.resize(num_parameters());
  suspended_[i] = std::exchange(leaves_[i].mutable_grad(), at::Tensor());
}

void ParameterGroup::zero_gradient(size_t i) noexcept {
  const Backstage backstage;
  marks_.note_zeroed(i);
  restore_gradient(i);
  if (leaves_[i].grad().defined()) leaves_[i].mutable_grad().zero_();
}

void ParameterGroup::restore_gradient(size_t i) {
  if (i >= suspended_.size() || !suspended_[i].defined()) return;
  const at::Tensor gradient = std::exchange(suspended_[i], at::Tensor());
  if (!leaves_[i].grad().defined()) leaves_[i].mutable_grad() = gradient;
}

void ParameterGroup::heed_gradient_marks() {
  const Backstage backstage;
  for (size_t i = 0; i < num_parameters(); ++i) {
    const at::Tensor parameter = this->parameter(i);
    if (!parameter.defined()) continue;
    restore_gradient(i);
    switch (marks_.fate(i, parameter)) {
      case GradientMarks::Fate::kNotSet:
      case GradientMarks::Fate::kKept:
        break;
      case GradientMarks::Fate::kEmptied:
        marks_.take(i, parameter);
        leaves_[i].mutable_grad().reset();
        gradients_->forget(i);
        break;
      case GradientMarks::Fate::kZeroed:
        marks_.take(i, parameter);
        if (leaves_[i].grad().defined()) leaves_[i].mutable_grad().zero_();
        gradients_->forget(i);
        marks_.set(i, parameter);
        break;
      case GradientMarks::Fate::kReplaced:
        marks_.take(i, parameter);
        parameter.mutable_grad().reset();
        FSDP_THROW(kUsage, "[backward] the program gave '", names_[i],
                   "' a gradient of its own, through the module. A sharded model's gradients are those of "
                   "fsdp::parameters(module): set them there, each rank its slice.");
    }
  }
}

void ParameterGroup::take_gradient_marks() {
  heed_gradient_marks();
  for (size_t i = 0; i < num_parameters(); ++i) {
    if (const at::Tensor parameter = this->parameter(i); parameter.defined()) marks_.take(i, parameter);
  }
}

at::Tensor ParameterGroup::parameter(size_t i) const { return at::Tensor(parameters_[i].lock()); }

void ParameterGroup::update_in_backward() {
  count_missing_gradients_as_zero();
  gradients_->publish();
  update_in_backward_();
  gradients_->free_main_grad();
}

void ParameterGroup::poison() {
  if (residence_ == Residence::kAliased) return;
  unsharded_.allow_access();
  try {
    gather_.wait();  // it writes there
  } catch (const std::exception&) {
    // The program hears of the failure that led here.
  }
  arriving_.release(*allocator_);
  try {
    isolate_unsharded();
    if (!unsharded_.resident()) unsharded_.reallocate(*allocator_);
    at::Tensor weights = writable(unsharded_.local());
    const at::Scalar all_bits = 255;  // of codes' scales, which are fp32: NaN too
    weights.fill_(weights.is_floating_point() ? std::numeric_limits<double>::quiet_NaN() : all_bits);
  } catch (const std::exception& error) {
    // Memory is what is missing. The one copy of this host is whole, and not this rank's to spoil.
    if (residence_ != Residence::kShared) {
      unsharded_.claim_bytes();
      unsharded_.refuse_access(
          c10::str("[unshard] out of memory for the weights of '", unit_name_, "': ", error.what()));
      if (!unsharded_.resident()) return;
    }
  }
  if (weight_phase() == WeightPhase::kResting) weight_phase_.change_to(WeightPhase::kUnsharding);
  if (weight_phase() == WeightPhase::kUnsharding) weight_phase_.change_to(WeightPhase::kUnsharded);
  unsharded_revision_ = kNoRevision;
}

}  // namespace fsdp
