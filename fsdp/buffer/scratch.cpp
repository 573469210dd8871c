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
  make_tensor(numel, options);
  return tensor_;
}

void Scratch::take_over(DBuffer& buffer) {
  FSDP_ASSERT(!resident(), "scratch memory taken twice");
  bytes_ = buffer.bytes();
  memory_ = buffer.give_up();
  make_tensor(buffer.local().numel(), buffer.local().options());
}

void Scratch::make_tensor(int64_t numel, const at::TensorOptions& options) {
  tensor_ = at::for_blob(memory_.get(), {numel}).options(options).target_device(memory_.device()).make_tensor();
}

void Scratch::release(BufferAllocator& allocator) {
  if (!resident()) return;
  tensor_.reset();
  allocator.give_back(std::move(memory_), bytes_);
  bytes_ = 0;
}

}  // namespace fsdp
