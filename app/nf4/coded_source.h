#pragma once

#include <memory>

#include "io/base/weight_source.h"

namespace fsdp::app {

// `source` as transformers and bitsandbytes store a model in 4 bits (NF4 with double quantisation): of each matrix
// "X.weight" of the blocks its codes, U8 [ceil(out in / 2), 1], and beside it "X.weight.absmax", ".nested_absmax",
// ".nested_quant_map", ".quant_map" and ".quant_state.bitsandbytes__nf4", with the bytes of bitsandbytes'
// quantize_4bit; other floating-point tensors in BF16; config.json with the quantization_config that says so.
// Throws Error(kUsage) where a weight is no BF16, F16 or F32, or nothing is left to encode; reading throws
// Error(kModel) where a weight is not finite.
std::unique_ptr<io::WeightSource> open_coded_source(std::unique_ptr<io::WeightSource> source);

}  // namespace fsdp::app
