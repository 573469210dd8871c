#include "fsdp/checkpoint/state/whole_range.h"

#include <ATen/ATen.h>

#include "fsdp/base/check.h"

namespace fsdp::checkpoint {

WholeRange::WholeRange(const ModuleTensor& tensor)
    : sizes_(tensor.sizes()),
      local_(tensor.member->group->main_slice(tensor.member->index)),
      cut_(registry::find_cut(*tensor.tensor)) {}

TensorSlice WholeRange::place(const std::string& name) const {
  if (!cut_) return {name, sizes_, local_.begin, local_.end, {}};
  const int64_t part = cut_->ranks->rank(), parts = cut_->ranks->size(), run = cut_->run();
  if (!is_exchanged()) return {name, sizes_, part * run + local_.begin, part * run + local_.end, {}};
  FSDP_ASSERT(local_.begin % run == 0 && local_.end % run == 0, "'", name, "' has elements ", local_.begin, " to ",
              local_.end, ", which are no rows of ", run);
  const int64_t count = local_.end - local_.begin;
  const int64_t begin = local_.begin * parts + part * count;
  return {name, sizes_, begin, begin + count, {}};
}

TensorSlice WholeRange::blocks(const std::string& name, const at::Tensor& local, int64_t block) const {
  FSDP_ASSERT(!cut_, "'", name, "' is cut, and its blocks with it");
  const auto count = [&](int64_t elements) { return (elements + block - 1) / block; };
  return {name, {count(c10::multiply_integers(sizes_))}, count(local_.begin), count(local_.end), local};
}

TensorSlice WholeRange::to_save(const std::string& name, const at::Tensor& local) const {
  TensorSlice slice = place(name);
  slice.data = local;
  if (!is_exchanged() || local.numel() == 0) return slice;
  const int64_t parts = cut_->ranks->size(), run = cut_->run(), count = local.numel();
  const at::Tensor all = at::empty({parts * count}, local.options().requires_grad(false));
  cut_->ranks->all_gather(all, local.detach().contiguous(), {"join columns", name, ""}).wait();
  const at::Tensor rows = all.view({parts, count / run, run}).transpose(0, 1).reshape({-1});
  slice.data = rows.narrow(0, cut_->ranks->rank() * count, count).clone();
  return slice;
}

TensorSlice WholeRange::to_load(const std::string& name, const at::Tensor& local) const {
  TensorSlice slice = place(name);
  slice.data = is_exchanged() ? at::empty_like(local.detach()) : local;
  return slice;
}

void WholeRange::take(const TensorSlice& read, const at::Tensor& local) const {
  if (!is_exchanged() || local.numel() == 0) return;
  const int64_t parts = cut_->ranks->size(), run = cut_->run(), count = local.numel();
  const at::Tensor rows = at::empty({parts * count}, read.data.options());
  cut_->ranks->all_gather(rows, read.data, {"hand out columns", read.name, ""}).wait();
  const at::Tensor mine = rows.view({count / run, parts, run}).select(1, cut_->ranks->rank());
  local.detach().copy_(mine.reshape(local.sizes()));
}

}  // namespace fsdp::checkpoint
