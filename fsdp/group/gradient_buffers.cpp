#include "fsdp/group/gradient_buffers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/trace.h"
#include "kernels/pack.h"

namespace fsdp {

GradientBuffers::GradientBuffers(GradientSpec spec)
    : layout_(std::move(spec.layout)),
      traits_(spec.traits),
      comm_(std::move(spec.comm)),
      slabs_(std::move(spec.slabs)),
      leaves_(std::move(spec.leaves)),
      main_placement_(spec.placement),
      main_options_(spec.main_options),
      reduce_buffer_(layout_, Placement::kPartial, comm_->rank(), main_options_.dtype(spec.reduce_dtype),
                     Backing::kSlab),
      used_(leaves_.size(), false),
      placed_(leaves_.size(), false),
      this_pass_(leaves_.size(), false),
      arrived_(leaves_.size(), 0) {}

bool GradientBuffers::used() const { return std::find(used_.begin(), used_.end(), true) != used_.end(); }

void GradientBuffers::forget_use() { std::fill(used_.begin(), used_.end(), false); }

void GradientBuffers::begin_backward() { std::fill(this_pass_.begin(), this_pass_.end(), false); }

void GradientBuffers::begin_collecting() {
  if (phase() == GradPhase::kCollecting) return;
  reduce_buffer_.reallocate(*slabs_);
  phase_.change_to(GradPhase::kCollecting);
}

void GradientBuffers::add(size_t i, const at::Tensor& gradient, double scale) {
  FSDP_ASSERT(gradient.numel() == layout_->numels[i], "gradient of ", gradient.numel(), " elements");
  begin_collecting();
  kernels::pack_gradient(reduce_buffer_.part(i), gradient, scale, placed_[i]);
  placed_[i] = true;
  this_pass_[i] = true;
  arrived_[i] = 1;
}

bool GradientBuffers::complete() const {
  bool any = false;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (used_[i] && !this_pass_[i]) return false;
    any = any || used_[i];
  }
  return any;
}

// Parameters without a gradient, and the padding, contribute zeros.
void GradientBuffers::fill_missing() {
  const at::Tensor& buffer = reduce_buffer_.local();
  int64_t end = 0;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    const int64_t begin = layout_->offsets[i];
    if (begin > end) buffer.narrow(0, end, begin - end).zero_();
    end = begin + layout_->numels[i];
    if (!placed_[i]) reduce_buffer_.part(i).zero_();
  }
  if (buffer.numel() > end) buffer.narrow(0, end, buffer.numel() - end).zero_();
}

// Leaves' .grad decides: the main grad counts as empty where it is undefined, which is what zero_grad() makes of it.
comm::Accumulate GradientBuffers::prepare_main_grad() {
  if (!main_grad_.defined()) {
    main_grad_ = DBuffer(layout_, main_placement_, comm_->rank(), main_options_, Backing::kOwned);
    for (size_t i = 0; i < leaves_.size(); ++i)
      grad_slices_.push_back(main_grad_.part(i).detach());  // no view, so that zero_grad() may detach it
  }
  if (reduced_since_publish_) return comm::Accumulate::kAdd;
  const auto is_defined = [](const at::Tensor& leaf) { return leaf.grad().defined(); };
  if (std::none_of(leaves_.begin(), leaves_.end(), is_defined)) return comm::Accumulate::kOverwrite;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    const at::Tensor grad = leaves_[i].grad();
    if (!grad.defined()) {
      grad_slices_[i].zero_();
    } else if (!grad.is_same(grad_slices_[i])) {
      grad_slices_[i].copy_(grad);  // the program put a tensor of its own there
    }
  }
  return comm::Accumulate::kAdd;
}

int64_t GradientBuffers::start_reduce(const std::string& unit) {
  const TraceScope trace("reduce", unit);
  begin_collecting();
  fill_missing();
  accumulate_ = prepare_main_grad();
  reduced_since_publish_ = true;
  const int64_t staging_numel = comm_->staging_numel(layout_->shard_numel);
  staging_bytes_ = staging_numel * static_cast<int64_t>(reduce_buffer_.local().element_size());
  at::Tensor staging;
  if (staging_bytes_ > 0) {
    staging_ = slabs_->take(staging_bytes_);
    staging = at::from_blob(staging_.get(), {staging_numel}, reduce_buffer_.local().options());
  }
  const comm::CallLabel label{"reduce", unit, ""};
  if (traits_.reduce == ReduceKind::kAllReduce) {
    reduce_ = comm_->all_reduce(reduce_buffer_.local(), staging, label);
  } else {
    reduce_ = comm_->reduce_scatter(reduce_buffer_.local(), main_grad_.local(), staging, accumulate_, label);
  }
  phase_.change_to(GradPhase::kReducing);
  const int64_t passes = traits_.reduce == ReduceKind::kAllReduce ? 2 : 1;
  return passes * reduce_buffer_.bytes() / comm_->size() * (comm_->size() - 1);
}

void GradientBuffers::finish_reduce(const std::string& unit) {
  if (phase() != GradPhase::kReducing) return;
  const TraceScope trace("wait reduce", unit);
  reduce_.wait();
  if (traits_.reduce == ReduceKind::kAllReduce) {
    const at::Tensor& sum = reduce_buffer_.local();
    accumulate_ == comm::Accumulate::kAdd ? main_grad_.local().add_(sum) : main_grad_.local().copy_(sum);
  }
  release_reduce_memory();
}

void GradientBuffers::release_reduce_memory() {
  reduce_buffer_.release(*slabs_);
  if (staging_bytes_ > 0) slabs_->give_back(std::move(staging_), staging_bytes_);
  staging_bytes_ = 0;
  std::fill(placed_.begin(), placed_.end(), false);
  phase_.change_to(GradPhase::kEmpty);
}

void GradientBuffers::publish() {
  if (!reduced_since_publish_) return;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (arrived_[i] != 0) leaves_[i].mutable_grad() = grad_slices_[i];
    arrived_[i] = 0;
  }
  reduced_since_publish_ = false;
}

void GradientBuffers::drop() {
  FSDP_ASSERT(phase() != GradPhase::kReducing, "gradients dropped while they are reduced");
  if (phase() == GradPhase::kCollecting) release_reduce_memory();
  std::fill(arrived_.begin(), arrived_.end(), 0);
  reduced_since_publish_ = false;
}

}  // namespace fsdp
