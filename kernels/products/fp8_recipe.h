// How the numbers of a product of fp8 matrices are cut into blocks that share a scale.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdp::kernels {

// Scales are powers of two, so that scaling rounds nothing. By block of activations and gradients along the dimension
// that is summed over, and of weights; numbers are e4m3 unless said:
//   kTensorwise  the whole tensor each; gradients in e5m2
//   kDelayed     likewise, but scales of activations and gradients are those of earlier steps (fp8_history.h)
//   kRowwise     a row each
//   kBlockwise   1 x 128, weights 128 x 128. After: DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 3.3
//   kMx          1 x 32. After: "OCP Microscaling Formats (MX) Specification" 1.0, MXFP8
enum class Fp8Recipe { kTensorwise, kRowwise, kBlockwise, kMx, kDelayed };

// "tensorwise", "rowwise", "blockwise", "mxfp8", "delayed".
const char* name(Fp8Recipe recipe);
// Nothing: no recipe is called so.
std::optional<Fp8Recipe> find_fp8_recipe(const std::string& name);

// Whether the blocks of a weight are the same whichever dimension a product sums over: then its fp8 numbers serve
// forward and backward, and can take the weight's place.
bool has_one_weight(Fp8Recipe recipe);
// Rows and columns of such a block; 0: the whole weight.
int64_t weight_block(Fp8Recipe recipe);

// Both dimensions of a weight are to be multiples of this.
int64_t weight_granule(Fp8Recipe recipe);

}  // namespace fsdp::kernels
