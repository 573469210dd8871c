#include "fsdp/group/sum_tree.h"

#include <ATen/ATen.h>

#include <utility>

namespace fsdp {

int64_t SumTree::bytes() const {
  int64_t bytes = 0;
  for (const Scratch& digit : digits_) bytes += digit.bytes();
  return bytes;
}

// A microbatch whose neighbour waits is added to it at once.
SumTree::Place SumTree::open(BufferAllocator& allocator, int64_t numel, const at::TensorOptions& options) {
  if (has(0)) return {digits_[0].tensor(), comm::Accumulate::kAdd};
  if (digits_.empty()) digits_.emplace_back();
  return {digits_[0].take(allocator, numel, options), comm::Accumulate::kOverwrite};
}

// Digit 0 has two microbatches, so it is added to digit 1, if that is set; and so on.
void SumTree::carry() {
  if (!has(0)) return;
  for (size_t digit = 1; has(digit); ++digit) digits_[digit].tensor().add_(digits_[digit - 1].tensor());
}

// The sum is in the last digit that was set; it becomes the one after it.
void SumTree::settle(BufferAllocator& allocator) {
  size_t digit = 0;
  for (; has(digit); ++digit) {
    if (digit > 0) digits_[digit - 1].release(allocator);
  }
  if (digit == digits_.size()) digits_.emplace_back();
  if (digit > 0) std::swap(digits_[digit], digits_[digit - 1]);
  ++count_;
}

void SumTree::push(DBuffer& sum, BufferAllocator& allocator) {
  if (has(0)) {
    digits_[0].tensor().add_(sum.local());
    sum.release(allocator);
  } else {
    if (digits_.empty()) digits_.emplace_back();
    digits_[0].take_over(sum);
  }
  carry();
  settle(allocator);
}

void SumTree::add_to(const at::Tensor& last) const {
  for (size_t digit = 0; digit < digits_.size(); ++digit) {
    if (has(digit)) last.add_(digits_[digit].tensor());
  }
}

void SumTree::clear(BufferAllocator& allocator) {
  for (Scratch& digit : digits_) digit.release(allocator);
  count_ = 0;
}

void SumTree::zero(const layout::Range& elements) {
  for (const Scratch& digit : digits_) {
    if (digit.resident()) digit.tensor().narrow(0, elements.begin, elements.size()).zero_();
  }
}

}  // namespace fsdp
