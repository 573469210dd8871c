// Reads a Hugging Face checkpoint into a model that is not sharded.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/hub/model_folder.h"
#include "models/config/decoder_config.h"

namespace fsdp::models {

// A tensor that a model needs.
struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::optional<io::DType> dtype = {};  // unset: any floating-point type
};

// Throws io::Error(kModel) with ONE table of every name that is missing or surplus and every shape or dtype that does
// not fit. `lm_head.weight` of a model with tied embeddings and `rotary_emb.inv_freq` tensors of old files are
// tolerated. Reads no weights.
void check_weights(const std::vector<ExpectedTensor>& expected, const io::ModelFolder& folder);

// What a file has to have of these parameters: stored_parts() of them all.
std::vector<ExpectedTensor> expected_tensors(const std::vector<ExpectedTensor>& parameters,
                                             const DecoderConfig& config);

// Fills every parameter of `module`, a decoder of `config`, from its stored_parts(), converted from bf16, fp16, fp32 or
// fp64 to the parameter's dtype. Reads one tensor at a time. Local. Throws what check_weights() throws; nothing has
// been written then.
void load_weights(torch::nn::Module& module, const DecoderConfig& config, const io::ModelFolder& folder);

}  // namespace fsdp::models
