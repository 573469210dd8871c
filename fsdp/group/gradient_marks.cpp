#include "fsdp/group/gradient_marks.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <algorithm>

#include "fsdp/base/backstage.h"

namespace fsdp {

// Pages that nobody wrote to are all the same one. A storage of their own, by which an observer knows them.
GradientMarks::GradientMarks(const layout::FlatLayout& layout, const std::vector<std::vector<int64_t>>& sizes,
                             const at::TensorOptions& options)
    : set_(sizes.size(), false), zeroed_(sizes.size(), false) {
  int64_t numel = 0;
  for (size_t i = 0; i < sizes.size(); ++i) numel = std::max(numel, layout.offsets[i] + layout.numels[i]);
  if (!options.device().is_cpu() || numel == 0) return;
  const size_t bytes = static_cast<size_t>(numel) * options.dtype().itemsize();
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  if (memory == MAP_FAILED) return;
  zeros_ = at::from_blob(
      memory, {numel}, [bytes](void* start) { munmap(start, bytes); }, options);
  for (size_t i = 0; i < sizes.size(); ++i)
    marks_.push_back(zeros_.narrow(0, layout.offsets[i], layout.numels[i]).view(sizes[i]).detach());
}

const c10::StorageImpl* GradientMarks::storage() const {
  return zeros_.defined() ? zeros_.storage().unsafeGetStorageImpl() : nullptr;
}

void GradientMarks::set(size_t i, const at::Tensor& parameter) {
  if (!zeros_.defined() || set_[i] || parameter.grad().defined()) return;
  parameter.mutable_grad() = marks_[i];
  set_[i] = true;
}

GradientMarks::Fate GradientMarks::fate(size_t i, const at::Tensor& parameter) const {
  if (!zeros_.defined() || !set_[i]) return Fate::kNotSet;
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined()) return Fate::kEmptied;
  if (!is_mark(i, gradient)) return Fate::kReplaced;
  return zeroed_[i] ? Fate::kZeroed : Fate::kKept;
}

bool GradientMarks::is_mark(size_t i, const at::Tensor& gradient) const {
  return set_[i] && gradient.defined() && gradient.has_storage() && gradient.is_alias_of(zeros_);
}

void GradientMarks::take(size_t i, const at::Tensor& parameter) {
  if (!zeros_.defined()) return;
  if (is_mark(i, parameter.grad())) parameter.mutable_grad().reset();
  if (zeroed_[i]) clear();
  zeroed_[i] = set_[i] = false;
}

at::Tensor GradientMarks::release(size_t i, const at::Tensor& gradient) {
  if (!is_mark(i, gradient)) {
    // With a graph of its own autograd makes a new tensor of the mark and the gradient.
    if (at::GradMode::is_enabled()) set_[i] = false;
    return gradient;
  }
  const Backstage backstage;
  at::Tensor sum = gradient.clone();
  clear();
  set_[i] = false;
  return sum;
}

void GradientMarks::clear() { madvise(zeros_.mutable_data_ptr(), zeros_.nbytes(), MADV_DONTNEED); }

}  // namespace fsdp
