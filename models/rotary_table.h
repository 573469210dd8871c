// Cosines and sines of the rotary position embedding.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "models/config/decoder_config.h"

namespace fsdp::models {

// Angles, cosines and sines are computed in fp32 from fp32 frequencies and then cast, as Hugging Face does. Kept for
// all positions seen so far and grown on demand. Plain tensors: no parameter, no buffer, not in any checkpoint.
class RotaryTable {
 public:
  RotaryTable(const RopeConfig& config, int64_t head_dim) : config_(config), head_dim_(head_dim) {}

  // cos and sin [num_positions, head_dim] of positions first .. first + num_positions - 1.
  std::pair<at::Tensor, at::Tensor> rows(int64_t first, int64_t num_positions, const at::TensorOptions& options);

  // cos and sin [..., head_dim] of the given int64 positions, which must not be negative. The host reads the highest of
  // them: on the CPU they cost no wait for a device.
  std::pair<at::Tensor, at::Tensor> rows(const at::Tensor& positions, const at::TensorOptions& options);

 private:
  void grow(int64_t num_positions, const at::TensorOptions& options);

  RopeConfig config_;
  int64_t head_dim_;
  at::Tensor cos_, sin_;  // [positions, head_dim]
};

// Frequencies of the dimensions [head_dim / 2], fp32 on the CPU. kLlama3 after transformers modeling_rope_utils.py.
at::Tensor rotary_frequencies(const RopeConfig& config, int64_t head_dim);

}  // namespace fsdp::models
