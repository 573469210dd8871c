#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "kernels/base/parallel_for.h"
#include "kernels/raw/bf16.h"

namespace fsdp::kernels {

// The model weight that an update of fp32 weights on the CPU writes along.
class WeightCopy {
 public:
  // copy: undefined, or bf16, fp16 or fp32, contiguous.
  explicit WeightCopy(const at::Tensor& copy);
  // Elements [begin, begin + count) from `weight` on, which is at `begin`. Any thread; fp16 waits for finish().
  void write(const float* weight, int64_t begin, int64_t count) const;
  void finish(const at::Tensor& weight) const;

 private:
  at::Tensor copy_;
  float* same_ = nullptr;
  raw::Bf16* rounded_ = nullptr;
};

// Calls update(begin, count) for all blocks of an fp32 `weight`, on LibTorch's threads, and writes the copy of each
// while it is in the cache.
template <class Update>
void update_and_copy(const at::Tensor& weight, const at::Tensor& copy, const Update& update) {
  const WeightCopy along(copy);
  constexpr int64_t kBlock = 4096, kGrain = 16;
  const int64_t numel = weight.numel();
  const float* numbers = weight.const_data_ptr<float>();
  parallel_for(0, (numel + kBlock - 1) / kBlock, kGrain, [&](int64_t first_block, int64_t last_block) {
    for (int64_t begin = first_block * kBlock; begin < std::min(numel, last_block * kBlock); begin += kBlock) {
      const int64_t count = std::min(kBlock, numel - begin);
      update(begin, count);
      along.write(numbers + begin, begin, count);
    }
  });
  along.finish(weight);
}

}  // namespace fsdp::kernels
