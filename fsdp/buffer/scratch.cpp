#include "fsdp/buffer/scratch.h"

#include <ATen/ATen.h>

#include <utility>

#include "fsdp/base/check.h"

namespace fsdp {

const at::Tensor& Scratch::take(BufferAllocator& allocator, int64_t numel, const at::TensorOptions& options) {
  FSDP_ASSERT(!resident(), "scratch memory taken twice");
  bytes_ = numel * static_cast<int64_t>(c10::elementSize(c10::typeMetaToScalarType(options.dtype())));
  memory_ = allocator.take(bytes_);
  allocator.ready().hold_back_current();
  tensor_ = at::for_blob(memory_.get(), {numel}).options(options).target_device(memory_.device()).make_tensor();
  return tensor_;
}

void Scratch::release(BufferAllocator& allocator) {
  if (!resident()) return;
  tensor_.reset();
  allocator.give_back(std::move(memory_), bytes_);
  bytes_ = 0;
}

}  // namespace fsdp
