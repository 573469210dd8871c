#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "fsdp/buffer/dbuffer.h"
#include "fsdp/buffer/scratch.h"
#include "fsdp/comm/comm.h"

namespace fsdp {

// Sums of microbatches that wait for later ones (SumOrder::kTree): a binary counter whose digit k, where it is set, is
// the sum of 2^k microbatches that follow each other. Memory: log2 of the microbatches. Local; driven by one thread,
// except for carry() and add_to(), which take no memory.
class SumTree {
 public:
  bool empty() const { return count_ == 0; }
  int64_t bytes() const;

  // The next microbatch's sum: whoever makes it writes it there, or adds it to what is there; then carry(), then
  // settle().
  struct Place {
    at::Tensor sum;
    comm::Accumulate how;
  };
  Place open(BufferAllocator& allocator, int64_t numel, const at::TensorOptions& options);
  void carry();
  void settle(BufferAllocator& allocator);
  // All three, for a sum that is there: the buffer's memory is empty afterwards.
  void push(DBuffer& sum, BufferAllocator& allocator);

  // Adds what waits to the last microbatch's sum, which makes it that of all.
  void add_to(const at::Tensor& last) const;
  void clear(BufferAllocator& allocator);
  // Elements that count no more.
  void zero(const layout::Range& elements);

 private:
  bool has(size_t digit) const { return digit < digits_.size() && (count_ >> digit & 1) != 0; }

  std::vector<Scratch> digits_;
  int64_t count_ = 0;  // of microbatches
};

}  // namespace fsdp
