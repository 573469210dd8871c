#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <deque>

namespace fsdp {

struct MemoryRange {
  const void* data = nullptr;
  size_t num_bytes = 0;
};

// While it lives, a tensor has a size and dtype of our choice and memory of its own: zero pages, which cost nothing
// until they are written to. The tensor stays the same object; what autograd knows of it is not touched. Holds no
// reference to it: the tensor must outlive the stand-in.
class StandIn {
 public:
  // Throws Error(kMemory) if there is not even address space.
  StandIn(const at::Tensor& tensor, at::IntArrayRef sizes, at::ScalarType dtype);
  ~StandIn();
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

  MemoryRange memory() const { return memory_; }
  // Nobody gave the tensor other memory meanwhile.
  bool holds_tensor() const;

 private:
  c10::TensorImpl* tensor_;
  at::Tensor original_;
  int64_t version_;
  MemoryRange memory_;
  c10::Storage storage_;
};

using StandIns = std::deque<StandIn>;

}  // namespace fsdp
