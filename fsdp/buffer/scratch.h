#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fsdp/buffer/buffer_allocator.h"
#include "fsdp/buffer/dbuffer.h"

namespace fsdp {

// A 1-D tensor in memory of an allocator, from take() to release(). Whoever still holds the tensor then must not use
// it. On a device with the rules of DBuffer::reallocate() and release().
class Scratch {
 public:
  const at::Tensor& take(BufferAllocator& allocator, int64_t numel, const at::TensorOptions& options);
  void release(BufferAllocator& allocator);
  // The memory, and what is in it, of a buffer from the same allocator, which has none from then on.
  void take_over(DBuffer& buffer);

  bool resident() const { return tensor_.defined(); }
  const at::Tensor& tensor() const { return tensor_; }
  int64_t bytes() const { return bytes_; }

 private:
  void make_tensor(int64_t numel, const at::TensorOptions& options);

  c10::DataPtr memory_;
  int64_t bytes_ = 0;
  at::Tensor tensor_;
};

}  // namespace fsdp
