#pragma once

#include <memory>
#include <optional>

#include "io/base/weight_source.h"

namespace fsdp::app {

// Weights as DeepSeek-V3's config.json has them: a matrix [out, in] "X.weight" in F8_E4M3, and beside it
// "X.weight_scale_inv", F32 [ceil(out / 128), ceil(in / 128)]. A weight is its fp8 number times its block's scale.

// `source` in that layout: the matrices of linear layers in fp8, other floating-point tensors in BF16. Embeddings, the
// head, routers and what is no matrix stay BF16, as in DeepSeek-V3. Scales are powers of two, the lowest that keep
// a block's largest number within e4m3, so that numbers are those that "blockwise" products compute with.
// Throws Error(kUsage) where a weight is no BF16, F16 or F32, or nothing is left to round; reading throws Error(kModel)
// where a weight is not finite.
std::unique_ptr<io::WeightSource> open_fp8_source(std::unique_ptr<io::WeightSource> source);

// The weights that such a source stands for: in F32 if `dtype` is given (to be converted further), else in BF16.
// `config` without its quantization_config. A source without fp8 matrices is handed back as it is. Throws Error(kModel)
// where scales are missing or of another shape.
std::unique_ptr<io::WeightSource> open_unscaled_source(std::unique_ptr<io::WeightSource> source,
                                                       std::optional<io::DType> dtype);

}  // namespace fsdp::app
