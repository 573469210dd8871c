#include "fsdp/buffer/dbuffer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/libtorch_version.h"

namespace fsdp {
namespace {

void exchange_memory(const at::Tensor& tensor, c10::DataPtr memory, int64_t bytes) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(std::move(memory));
  storage->set_nbytes(static_cast<size_t>(bytes));
}

// The same memory under a storage of its own, which keeps `tensor`'s alive: for what may write there while access
// through `tensor` is refused.
at::Tensor unguarded(const at::Tensor& tensor) {
  const at::Storage& storage = tensor.storage();
  auto* keep = new at::Storage(storage);
  const auto drop = [](void* kept) { delete static_cast<at::Storage*>(kept); };
  c10::DataPtr memory(storage.mutable_data(), keep, drop, tensor.device());
  at::Tensor alias = at::empty({0}, tensor.options());
  c10::TensorImpl* impl = alias.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(at::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(memory), nullptr, false)));
  impl->set_storage_offset(tensor.storage_offset());
  impl->set_sizes_contiguous(tensor.sizes());
  return alias;
}

}  // namespace

at::Tensor writable(const at::Tensor& tensor) { return tensor.variable_data(); }

DBuffer::DBuffer(std::shared_ptr<const layout::FlatLayout> layout, Placement placement, int index,
                 const at::TensorOptions& options, Backing backing)
    : layout_(std::move(layout)), placement_(placement), index_(index) {
  numel_ = placement == Placement::kShard ? layout_->shard_numel : layout_->total_numel();
  resident_ = backing == Backing::kOwned;
  if (resident_) {
    local_ = at::empty({numel_}, options).zero_();
  } else {
    local_ = at::empty({0}, options);  // a device's memory is not taken for a moment
    local_.unsafeGetTensorImpl()->set_sizes_contiguous({numel_});
  }
}

DBuffer::DBuffer(std::shared_ptr<const layout::FlatLayout> layout, Placement placement, int index, at::Tensor local)
    : layout_(std::move(layout)), placement_(placement), index_(index), local_(std::move(local)) {
  numel_ = local_.numel();
  resident_ = true;
}

DBuffer DBuffer::alias() const { return {layout_, placement_, index_, unguarded(local_)}; }

c10::DataPtr DBuffer::exchange(c10::DataPtr memory) {
  return local_.storage().unsafeGetStorageImpl()->set_data_ptr(std::move(memory));
}

void DBuffer::refuse_access(const std::string& reason) {
  local_.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(reason);
  refuses_access_ = true;
}

void DBuffer::allow_access() {
  if (!std::exchange(refuses_access_, false)) return;
  libtorch::allow_access(*local_.storage().unsafeGetStorageImpl());
}

void DBuffer::claim_bytes() { local_.storage().unsafeGetStorageImpl()->set_nbytes(static_cast<size_t>(bytes())); }

int64_t DBuffer::bytes() const { return numel_ * static_cast<int64_t>(local_.element_size()); }

at::Tensor DBuffer::part(size_t i) const {
  if (placement_ != Placement::kShard) return local_.narrow(0, layout_->offsets[i], layout_->numels[i]);
  const layout::Range slice = layout_->slice_of(index_, i);
  const int64_t begin = slice.empty() ? 0 : layout_->offsets[i] + slice.begin - index_ * layout_->shard_numel;
  return local_.narrow(0, begin, slice.size());
}

at::Tensor DBuffer::own_slice() const {
  FSDP_ASSERT(placement_ != Placement::kShard, "own_slice() of a sharded buffer");
  return local_.narrow(0, index_ * layout_->shard_numel, layout_->shard_numel);
}

void DBuffer::reallocate(BufferAllocator& allocator) {
  FSDP_ASSERT(!resident_, "buffer has its memory already");
  exchange_memory(local_, allocator.take(bytes()), bytes());
  ready_ = allocator.ready();
  ready_.hold_back_current();
  resident_ = true;
}

void DBuffer::release(BufferAllocator& allocator, const StreamPoint& end) {
  allocator.give_back(give_up(), bytes(), end);
}

c10::DataPtr DBuffer::give_up() {
  FSDP_ASSERT(resident_, "buffer has no memory");
  c10::StorageImpl* storage = local_.storage().unsafeGetStorageImpl();
  c10::DataPtr memory = storage->set_data_ptr(c10::DataPtr(nullptr, local_.device()));
  storage->set_nbytes(0);
  ready_ = {};
  resident_ = false;
  return memory;
}

comm::Stage DBuffer::all_gather_from(const at::Tensor& shard, std::shared_ptr<comm::Comm> comm,
                                     comm::CallLabel label) const {
  FSDP_ASSERT(placement_ == Placement::kReplicate, "gather into a buffer that is not replicated");
  const at::Tensor output = unguarded(local_);
  const bool in_place = shard.is_alias_of(local_);
  const at::Tensor input = in_place ? output.narrow(0, shard.storage_offset(), shard.numel()) : writable(shard);
  return [output, input, comm = std::move(comm), label = std::move(label)] {
    return comm->all_gather(output, input, label);
  };
}

}  // namespace fsdp
