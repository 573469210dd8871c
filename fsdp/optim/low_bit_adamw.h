#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "fsdp/group/parameters.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/block_code.h"
#include "fsdp/optim/flat_optimizer.h"

namespace fsdp {

// AdamW with moments of 8 bits: 2 bytes a parameter and 8 for each block of kCodeBlock, in place of 8 bytes a
// parameter. Weights are fp32; or, with WeightDigits::kEightBits, bf16 (a model that was to(torch::kBFloat16)) and
// eight more bits of each, 24 together, in the optimizer's state: 7.03 bytes a parameter for weight, gradient and all
// state, on the CPU. With kEightBitsAtRandom rounding draws from the step and an element's place in its parameter, and
// from nothing else. Blocks are counted from the start of a parameter, and what they hold does not depend on
// the number of ranks; no border between ranks may cut one, so that units must be sharded with
//   ShardOptions::layout = {.granularity = layout::Granularity::kBlock, .block = kCodeBlock}
// (rows whose length it divides and whole tensors do, too). After: Dettmers et al. 2022, bitsandbytes' AdamW8bit;
// Zamirai et al. 2021, "Revisiting BFloat16 Training", and FlashOptim for weights in two parts.
class LowBitAdamW : public FlatOptimizer {
 public:
  // Throws Error(kUsage) for options out of range, moments' dtypes, kCompensated, and naming it for a parameter of
  // which a block is cut.
  LowBitAdamW(std::vector<at::Tensor> parameters, AdamWOptions options, BlockCode code = BlockCode::kDynamic);
  LowBitAdamW(std::vector<AdamWGroup> groups, BlockCode code = BlockCode::kDynamic);
  LowBitAdamW(std::vector<DecayGroup> groups, AdamWOptions options, BlockCode code = BlockCode::kDynamic);

  AdamWOptions& options(size_t group);
};

}  // namespace fsdp
