#include "fsdp/group/gradient_buffers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/base/trace.h"
#include "kernels/flat/pack.h"

namespace fsdp {

using comm::Accumulate;

namespace {

// What the main grad holds meets sums that lack a factor: it is taken from it before they come, and all get it after.
void take_factor(const at::Tensor& main, Accumulate accumulate, double after) {
  if (after != 1 && accumulate == Accumulate::kAdd) main.mul_(1 / after);
}

std::function<void()> give_factor(const at::Tensor& main, double after) {
  if (after == 1) return {};
  return [main, after] { main.mul_(after); };
}

void meet(const at::Tensor& main, const at::Tensor& sum, Accumulate accumulate, double after) {
  if (accumulate == Accumulate::kAdd) {
    main.add_(sum, after);
  } else {
    main.copy_(sum);
    if (after != 1) main.mul_(after);
  }
}

}  // namespace

GradientBuffers::GradientBuffers(GradientSpec spec)
    : spec_(std::move(spec)),
      has_replicas_(spec_.links.replicate != nullptr),
      uses_(spec_.leaves.size(), 0),
      placed_(spec_.leaves.size(), false),
      written_(spec_.leaves.size(), false),
      this_pass_(spec_.leaves.size(), false),
      had_gradient_(spec_.leaves.size(), false),
      arrived_(spec_.leaves.size(), 0) {
  const int index = spec_.links.shard->rank();
  const auto buffer_of = [&](at::ScalarType dtype) {
    return DBuffer(spec_.layout, Placement::kPartial, index, spec_.sum_options.dtype(dtype), Backing::kSlab);
  };
  reduce_buffer_ = buffer_of(spec_.reduce_dtype);
  if (spec_.accumulate_dtype != spec_.reduce_dtype) wide_buffer_ = buffer_of(spec_.accumulate_dtype);
  if (has_replicas_) {
    partial_ = DBuffer(spec_.layout, Placement::kShard, index, spec_.sum_options, Backing::kSlab);
  }
}

GradientBuffers::~GradientBuffers() { reduce_.abandon(); }

int64_t GradientBuffers::resident_bytes() const {
  int64_t bytes = staging_.bytes() + replica_wire_.bytes() + outcome_.bytes() + waiting_.bytes() + reduced_.bytes();
  for (const DBuffer* buffer : {&reduce_buffer_, &wide_buffer_, &partial_}) {
    if (buffer->resident()) bytes += buffer->bytes();
  }
  return bytes;
}

// Reads in a backward alone tell that the forward hid its own: there may have been several.
void GradientBuffers::note_use(size_t i, UseAt at) {
  if (at == UseAt::kForward) {
    uses_[i] = uses_[i] == 0 ? 1 : 2;
  } else if (uses_[i] == 0) {
    uses_[i] = 2;
  }
}

bool GradientBuffers::used() const {
  return std::any_of(uses_.begin(), uses_.end(), [](uint8_t uses) { return uses > 0; });
}

void GradientBuffers::forget_use() { std::fill(uses_.begin(), uses_.end(), 0); }

std::vector<uint8_t> GradientBuffers::take_uses() {
  return std::exchange(uses_, std::vector<uint8_t>(uses_.size(), 0));
}

void GradientBuffers::begin_backward() {
  std::fill(this_pass_.begin(), this_pass_.end(), false);
  const bool any = std::find(placed_.begin(), placed_.end(), true) != placed_.end();
  if (is_tree() && phase() == GradPhase::kCollecting && any) put_in_tree();
}

// The microbatch before is whole; the next one is collected apart from it.
void GradientBuffers::put_in_tree() {
  const Backstage backstage;
  fill_missing(reduce_buffer_);
  waiting_.push(reduce_buffer_, *spec_.allocator);
  release_reduce_memory();
}

DBuffer& GradientBuffers::collected_in() {
  if (spec_.in_main_grad) return main_grad_;
  return wide_buffer_.resident() ? wide_buffer_ : reduce_buffer_;
}

void GradientBuffers::begin_collecting(const ReductionFactors& factors, Collect collect) {
  if (phase() == GradPhase::kCollecting) return;
  const bool divides_twice = spec_.reduce_dtype == at::kHalf && spec_.sum_options.dtype() != at::kHalf;
  if (!has_partial_sums()) after_ = divides_twice ? factors.after : 1;
  if (spec_.in_main_grad) {
    const bool has_sums = prepare_main_grad() == Accumulate::kAdd;
    std::fill(placed_.begin(), placed_.end(), has_sums);
    phase_.change_to(GradPhase::kCollecting);
    return;
  }
  const bool wide = wide_buffer_.defined() && collect == Collect::kAcrossMicrobatches;
  (wide ? wide_buffer_ : reduce_buffer_).reallocate(*spec_.allocator);
  phase_.change_to(GradPhase::kCollecting);
}

void GradientBuffers::add(size_t i, const at::Tensor& gradient, const ReductionFactors& factors, Collect collect) {
  FSDP_ASSERT(gradient.numel() == spec_.layout->numels[i], "gradient of ", gradient.numel(), " elements");
  begin_collecting(factors, collect);
  const at::Tensor part = collected_in().part(i);
  const double scale = factors.total / after_;
  // What is no stand-in although the slot was written is a gradient of another operator, which nobody announced.
  if (!kernels::is_stand_in(gradient)) kernels::pack_gradient(part, gradient, scale, placed_[i] || written_[i]);
  written_[i] = false;
  placed_[i] = true;
  this_pass_[i] = true;
  arrived_[i] = 1;
}

std::optional<kernels::GradientSlot> GradientBuffers::open_slot(size_t i, const ReductionFactors& factors,
                                                                Collect collect) {
  if (uses_[i] != 1 || this_pass_[i] || written_[i]) return std::nullopt;
  begin_collecting(factors, collect);
  const at::Tensor part = collected_in().part(i);
  if (part.scalar_type() != at::kFloat) return std::nullopt;
  written_[i] = true;
  return kernels::GradientSlot{part, placed_[i], factors.total / after_, {}};
}

bool GradientBuffers::has_open_slot() const {
  return std::find(written_.begin(), written_.end(), true) != written_.end();
}

bool GradientBuffers::complete() const {
  bool any = false;
  for (size_t i = 0; i < uses_.size(); ++i) {
    if (uses_[i] > 0 && !this_pass_[i]) return false;
    any = any || uses_[i] > 0;
  }
  return any;
}

bool GradientBuffers::arrived_in_backward() const {
  return std::find(this_pass_.begin(), this_pass_.end(), true) != this_pass_.end();
}

// Parameters without a gradient, and the padding, contribute zeros.
void GradientBuffers::fill_missing(DBuffer& target) {
  const at::Tensor& buffer = target.local();
  int64_t end = 0;
  for (size_t i = 0; i < placed_.size(); ++i) {
    const int64_t begin = spec_.layout->offsets[i];
    if (begin > end) buffer.narrow(0, end, begin - end).zero_();
    end = begin + spec_.layout->numels[i];
    if (!placed_[i]) target.part(i).zero_();
  }
  if (buffer.numel() > end) buffer.narrow(0, end, buffer.numel() - end).zero_();
}

void GradientBuffers::narrow_to_reduce_dtype() {
  if (!wide_buffer_.resident()) return;
  reduce_buffer_.reallocate(*spec_.allocator);
  reduce_buffer_.local().copy_(wide_buffer_.local());
  wide_buffer_.release(*spec_.allocator);
}

void GradientBuffers::make_main_grad() {
  const layout::FlatLayout& layout = *spec_.main_layout;
  if (!spec_.disk || passes_) {
    main_grad_ =
        DBuffer(spec_.main_layout, spec_.main_placement, spec_.main_index, spec_.main_options, Backing::kOwned);
    return;
  }
  const int64_t numel = spec_.main_placement == Placement::kShard ? layout.shard_numel : layout.total_numel();
  main_grad_ = DBuffer(spec_.main_layout, spec_.main_placement, spec_.main_index,
                       spec_.disk->zeros(numel, spec_.main_options.dtype().toScalarType()));
}

// Leaves' .grad decides: the main grad counts as empty where it is undefined, which is what zero_grad() makes of it.
Accumulate GradientBuffers::prepare_main_grad() {
  if (!main_grad_.defined()) {
    make_main_grad();
    for (size_t i = 0; i < spec_.leaves.size(); ++i)
      grad_slices_.push_back(main_grad_.part(i).detach());  // no view, so that zero_grad() may detach it
  }
  if (std::exchange(reduced_since_publish_, true)) return Accumulate::kAdd;
  for (size_t i = 0; i < spec_.leaves.size(); ++i) had_gradient_[i] = spec_.leaves[i].grad().defined();
  if (std::find(had_gradient_.begin(), had_gradient_.end(), true) == had_gradient_.end()) {
    return Accumulate::kOverwrite;
  }
  for (size_t i = 0; i < spec_.leaves.size(); ++i) {
    at::Tensor& grad = spec_.leaves[i].mutable_grad();
    if (!grad.defined()) {
      grad_slices_[i].zero_();
    } else if (!grad.is_same(grad_slices_[i])) {
      grad_slices_[i].copy_(grad);  // the program put a tensor of its own there
    }
    grad.reset();  // what autograd adds to the leaf meanwhile must not meet what other threads add to the main grad
  }
  return Accumulate::kAdd;
}

std::pair<at::Tensor, Accumulate> GradientBuffers::prepare_outcome() {
  const Accumulate accumulate = prepare_main_grad();
  const bool adds = accumulate == Accumulate::kAdd;
  main_window_ = DiskWindow(main_grad_.local(), adds ? DiskWindow::Content::kKept : DiskWindow::Content::kNew);
  const at::Tensor main = main_window_.memory();
  has_outcome_ = true;
  outcome_adds_ = accumulate == Accumulate::kAdd;
  const bool is_elsewhere = main.scalar_type() != spec_.sum_options.dtype().toScalarType() ||
                            main.device().type() != spec_.sum_options.device().type();
  if (!is_elsewhere && !((all_reduce_hook_ || is_tree()) && outcome_adds_)) return {main, accumulate};
  return {outcome_.take(*spec_.allocator, main.numel(), spec_.sum_options), Accumulate::kOverwrite};
}

// Of a reduction that is complete.
void GradientBuffers::take_outcome() {
  if (!has_outcome_) return;
  const at::Tensor main = main_window_.tensor();
  const at::Tensor sum = outcome_.resident() ? outcome_.tensor() : main;
  if (all_reduce_hook_) all_reduce_hook_(sum);
  if (!outcome_.resident()) return;
  outcome_adds_ ? main.add_(sum.to(main.device())) : main.copy_(sum);
}

void GradientBuffers::set_all_reduce_hook(AllReduceHook hook, const std::string& unit) {
  FSDP_CHECK(!spec_.in_main_grad || phase() == GradPhase::kEmpty, "[set_all_reduce_hook] unit '", unit,
             "': gradients of an earlier microbatch wait to be reduced, expected none. Set the hook before the first.");
  if (hook) spec_.in_main_grad = false;
  all_reduce_hook_ = std::move(hook);
}

// One piece serves both stages, which follow each other.
at::Tensor GradientBuffers::take_staging() {
  const c10::Device device = reduce_buffer_.local().device();
  int64_t numel = spec_.links.shard_reduce->staging_numel(spec_.layout->shard_numel, device);
  if (has_replicas_) {
    comm::Comm& replicate = *spec_.links.replicate;
    numel = std::max(numel, replicate.staging_numel(spec_.layout->shard_numel / replicate.size(), device));
  }
  if (numel == 0) return {};
  return staging_.take(*spec_.allocator, numel, reduce_buffer_.local().options());
}

int64_t GradientBuffers::start_reduce(const std::string& unit, const ReductionFactors& factors, ReduceReach reach,
                                      StepPlace place) {
  const TraceScope trace("start reduce", unit);
  begin_collecting(factors, Collect::kForThisReduce);
  // With nobody to add up with it waits where it is, rather than in a copy.
  if (is_tree() && place == StepPlace::kInside && spec_.links.shard->size() == 1 && !has_replicas_) {
    put_in_tree();
    return 0;
  }
  fill_missing(collected_in());
  waiting_.add_to(collected_in().local());
  waiting_.clear(*spec_.allocator);
  ends_tree_ = !is_tree() || (has_replicas_ ? reach == ReduceReach::kAllReplicas : place == StepPlace::kEnd);
  int64_t bytes = 0;
  if (!spec_.in_main_grad) {
    reduce_ = GroupLinks::post(spec_.links.reduce_lane, after_window(make_reduction(unit, reach, &bytes)));
    releases_partial_ = has_replicas_ && reach == ReduceReach::kAllReplicas;
  }
  phase_.change_to(GradPhase::kReducing);
  return bytes;
}

comm::Job GradientBuffers::make_reduction(const std::string& unit, ReduceReach reach, int64_t* bytes) {
  narrow_to_reduce_dtype();
  const at::Tensor staging = take_staging();
  comm::Job job = !ends_tree_     ? reduce_into_tree(staging, unit)
                  : has_replicas_ ? reduce_in_shard_group(staging, unit)
                                  : reduce_to_all(staging, unit);
  *bytes = received_bytes(reduce_buffer_.bytes(), *spec_.links.shard);
  if (spec_.traits.reduce == ReduceKind::kAllReduce) *bytes *= 2;
  if (has_replicas_ && reach == ReduceReach::kAllReplicas) {
    add_replica_stages(job, staging, unit);
    const int64_t wire = partial_.bytes() / static_cast<int64_t>(partial_.local().element_size()) *
                         static_cast<int64_t>(reduce_buffer_.local().element_size());
    *bytes += received_bytes(wire, *spec_.links.replicate) * (spec_.traits.shards_over_replicas ? 1 : 2);
  }
  return job;
}

// What a main grad on a disk holds is there before a job adds to it.
comm::Job GradientBuffers::after_window(comm::Job job) const {
  const std::shared_ptr<DiskRead> arrival = main_window_.arrival();
  if (!arrival) return job;
  comm::Stage wait = [arrival] {
    arrival->wait();
    return comm::Pending();
  };
  // Not where it is posted: with no other rank to meet, that is the program's thread.
  job.next.insert(job.next.begin(), std::exchange(job.first, [] { return comm::Pending(); }));
  job.next.insert(job.next.begin(), std::move(wait));
  return job;
}

// Without replicas: straight into the main grad.
comm::Job GradientBuffers::reduce_to_all(const at::Tensor& staging, const std::string& unit) {
  const comm::CallLabel label{"reduce", unit, "", spec_.part};
  const auto [main, accumulate] = prepare_outcome();
  const at::Tensor sum = reduce_buffer_.local();
  const auto shard = spec_.links.shard_reduce;
  if (spec_.traits.reduce == ReduceKind::kReduceScatter) {
    comm::Job job("reduce", unit, [=, main = main, accumulate = accumulate, after = after_] {
      take_factor(main, accumulate, after);
      return shard->reduce_scatter(sum, main, staging, accumulate, label);
    });
    job.finish = give_factor(main, after_);
    if (is_tree()) job.finish = [this, main = main] { reduced_.add_to(main); };
    return job;
  }
  comm::Job job = comm::all_reduce(shard, sum, staging, label);
  job.finish = [=, main = main, accumulate = accumulate, after = after_] { meet(main, sum, accumulate, after); };
  return job;
}

// Waits there for the microbatches that come.
comm::Job GradientBuffers::reduce_into_tree(const at::Tensor& staging, const std::string& unit) {
  FSDP_ASSERT(spec_.traits.reduce == ReduceKind::kReduceScatter, "an all-reduce of a microbatch inside of a step");
  const comm::CallLabel label{"reduce", unit, "", spec_.part};
  const auto place = reduced_.open(*spec_.allocator, spec_.layout->shard_numel, spec_.sum_options);
  comm::Job job("reduce", unit, [=, shard = spec_.links.shard_reduce, whole = reduce_buffer_.local()] {
    return shard->reduce_scatter(whole, place.sum, staging, place.how, label);
  });
  job.finish = [this] { reduced_.carry(); };
  return job;
}

comm::Job GradientBuffers::reduce_in_shard_group(const at::Tensor& staging, const std::string& unit) {
  const Accumulate accumulate = partial_.resident() ? Accumulate::kAdd : Accumulate::kOverwrite;
  if (!partial_.resident()) partial_.reallocate(*spec_.allocator);
  const comm::CallLabel label{"reduce", unit, "", spec_.part};
  return comm::Job("reduce", unit,
                   [=, shard = spec_.links.shard_reduce, whole = reduce_buffer_.local(), sums = partial_.local()] {
                     return shard->reduce_scatter(whole, sums, staging, accumulate, label);
                   });
}

// The partial sums travel between replicas in the reduce dtype and meet the main grad in its own.
void GradientBuffers::add_replica_stages(comm::Job& job, const at::Tensor& staging, const std::string& unit) {
  const auto [main, accumulate] = prepare_outcome();
  const at::Tensor partial = partial_.local();
  const auto replicate = spec_.links.replicate;
  const comm::CallLabel label{"reduce over replicas", unit, "", spec_.part};
  at::Tensor wire = partial;
  if (spec_.reduce_dtype != partial.scalar_type()) {
    wire = replica_wire_.take(*spec_.allocator, partial.numel(), partial.options().dtype(spec_.reduce_dtype));
  }
  const auto narrow = [this, wire, partial] {
    reduced_.add_to(partial);
    if (!wire.is_same(partial)) at::Tensor(wire).copy_(partial);
  };
  if (spec_.traits.shards_over_replicas) {
    job.next.emplace_back([=, main = main, accumulate = accumulate, after = after_] {
      narrow();
      take_factor(main, accumulate, after);
      return replicate->reduce_scatter(wire, main, staging, accumulate, label);
    });
    job.finish = give_factor(main, after_);
    return;
  }
  const auto stages = comm::all_reduce_stages(replicate, wire, staging, label);
  job.next.emplace_back([narrow, start = stages[0]] {
    narrow();
    return start();
  });
  job.next.push_back(stages[1]);
  job.finish = [=, main = main, accumulate = accumulate, after = after_] { meet(main, wire, accumulate, after); };
}

void GradientBuffers::finish_reduce(const std::string& unit) {
  if (phase() != GradPhase::kReducing) return;
  const TraceScope trace("wait reduce", unit);
  std::exception_ptr failure;
  try {
    reduce_.wait();
    take_outcome();
    if (has_outcome_) main_window_.write();
  } catch (...) {
    failure = std::current_exception();
  }
  release_reduce_memory();
  if (std::exchange(releases_partial_, false)) partial_.release(*spec_.allocator);
  if (failure) std::rethrow_exception(failure);
}

void GradientBuffers::release_reduce_memory() {
  if (phase() == GradPhase::kReducing)
    ends_tree_ ? reduced_.clear(*spec_.allocator) : reduced_.settle(*spec_.allocator);
  if (!spec_.in_main_grad && collected_in().resident()) collected_in().release(*spec_.allocator);
  staging_.release(*spec_.allocator);
  replica_wire_.release(*spec_.allocator);
  outcome_.release(*spec_.allocator);
  main_window_ = {};
  has_outcome_ = false;
  std::fill(placed_.begin(), placed_.end(), false);
  std::fill(written_.begin(), written_.end(), false);
  phase_.change_to(GradPhase::kEmpty);
}

void GradientBuffers::publish() {
  if (!reduced_since_publish_) return;
  finish_disk_writes();
  for (size_t i = 0; i < spec_.leaves.size(); ++i) {
    if (arrived_[i] != 0 || had_gradient_[i]) show_gradient(i);
    arrived_[i] = 0;
  }
  reduced_since_publish_ = false;
}

// Who sees the leaves' .grad may read it.
void GradientBuffers::finish_disk_writes() const {
  if (const auto spot = find_on_disk(main_grad_.local())) spot->disk->finish_windows();
}

// With what the loss said of the leaf itself (a penalty on the optimizer's parameters): this rank's slice of that is
// all of it, so it is neither scaled nor reduced.
void GradientBuffers::show_gradient(size_t i) {
  at::Tensor& grad = spec_.leaves[i].mutable_grad();
  if (grad.defined() && !grad.is_same(grad_slices_[i])) grad_slices_[i].add_(grad);
  grad = grad_slices_[i];
}

void GradientBuffers::free_main_grad() {
  for (const at::Tensor& leaf : spec_.leaves) leaf.mutable_grad().reset();
  grad_slices_.clear();
  main_grad_ = DBuffer();
}

bool GradientBuffers::waits(size_t i) const {
  return (phase() == GradPhase::kCollecting && placed_[i]) || has_partial_sums();
}

void GradientBuffers::forget(size_t i) {
  if (phase() == GradPhase::kCollecting && !spec_.in_main_grad) placed_[i] = false;
  arrived_[i] = 0;
  if (partial_.defined() && partial_.resident()) partial_.part(i).zero_();
  reduced_.zero(shard_range(i));
  waiting_.zero({spec_.layout->offsets[i], spec_.layout->offsets[i] + spec_.layout->numels[i]});
}

layout::Range GradientBuffers::shard_range(size_t i) const {
  const int index = spec_.links.shard->rank();
  const layout::Range slice = spec_.layout->slice_of(index, i);
  if (slice.empty()) return {};
  const int64_t start = spec_.layout->offsets[i] - index * spec_.layout->shard_numel;
  return {start + slice.begin, start + slice.end};
}

void GradientBuffers::drop() {
  FSDP_ASSERT(phase() != GradPhase::kReducing, "gradients dropped while they are reduced");
  if (phase() == GradPhase::kCollecting) release_reduce_memory();
  if (partial_.defined() && partial_.resident()) partial_.release(*spec_.allocator);
  waiting_.clear(*spec_.allocator);
  reduced_.clear(*spec_.allocator);
  if (reduced_since_publish_) finish_disk_writes();
  for (size_t i = 0; reduced_since_publish_ && i < spec_.leaves.size(); ++i) {
    if (had_gradient_[i]) show_gradient(i);
  }
  std::fill(arrived_.begin(), arrived_.end(), 0);
  reduced_since_publish_ = false;
}

}  // namespace fsdp
