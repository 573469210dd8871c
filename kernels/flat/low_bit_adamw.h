#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "kernels/flat/adamw.h"
#include "kernels/raw/flat/block_code.h"

namespace fsdp::kernels {

// Elements that share a scale.
inline constexpr int64_t kMomentBlock = 256;

// A moment of a range: uint8 codes, one an element, and fp32 scales, one a block.
struct CodedMoment {
  at::Tensor codes;
  at::Tensor scales;
  const raw::BlockCodes* code;
};

// Weights and how they are kept: fp32; or bf16, beside int8 digits (kernels/raw/flat/weight_digits.h).
struct KeptWeights {
  at::Tensor weight;
  at::Tensor digits = {};  // undefined for fp32
  // What becomes of what the digits have no room for: rounded to the nearest; or up or down at random, by this seed and
  // an element's place alone.
  std::optional<uint64_t> random_seed = {};
  int64_t begin = 0;  // place of the first element, for the seed: a multiple of kMomentBlock
};

// adamw_step() of a range that begins with a block, in one pass on the CPU: block by block moments and weight become
// fp32 numbers in the first cache, are updated and kept again. 12 B/element are read and written for bf16 weights and
// gradients, 18 B for fp32 ones. All tensors: 1-D, contiguous, of the weight's length but for scales; the gradient fp32
// or bf16. copy as in adamw_step(). On another device than the CPU: fp32 weights, by the kernels it has, as
// adamw_step().
void low_bit_adamw_step(const KeptWeights& weights, const at::Tensor& gradient, const CodedMoment& first,
                        const CodedMoment& second, const at::Tensor& copy, const AdamWStep& step);

}  // namespace fsdp::kernels
