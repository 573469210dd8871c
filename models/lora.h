// Low-rank adapters on the linear maps of a decoder: the base stays as it is, two thin matrices per map train.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/decoder.h"

namespace fsdp::models {

struct LoraConfig {
  int64_t rank = 16;
  double alpha = 32;
  double dropout = 0;
  std::vector<std::string> targets;  // linear maps by the last part of their name; {"all-linear"}: all in the blocks

  bool divides_by_root = false;  // rank-stabilised (rsLoRA): the scale is alpha / sqrt(rank)
  AdapterKind kind = AdapterKind::kLora;

  double scale() const;
};

// Puts an fp32 adapter on each linear map of the blocks that `config` names, and freezes every other parameter. They
// begin as peft's do: A uniform in +-1/sqrt(in) (Kaiming with a = sqrt(5)), B zero, so that the model computes what it
// did; kDora's offsets are zero. Values depend on `seed` and the parameter's name only. Before fully_shard(); may be
// deferred.
// Throws io::Error(kUsage) for a target that no block has, listing those there are.
void add_lora(Decoder& decoder, const LoraConfig& config, uint64_t seed);

struct NamedLinear {
  std::string name;  // as in "model.layers.0.mlp.up_proj"
  LinearImpl* module;
};
// The linear maps of the blocks, in the model's order, without those that are part of an adapter.
std::vector<NamedLinear> linears_in_blocks(const Decoder& decoder);

// The last parts of the names of linear maps in the blocks, each once, in the model's order.
std::vector<std::string> linear_names(const Decoder& decoder);

}  // namespace fsdp::models
