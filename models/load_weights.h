// Reads a Hugging Face checkpoint into a model that is not sharded.
#pragma once

#include <torch/nn/module.h>

#include "io/model_folder.h"

namespace fsdp::models {

// Fills every parameter of `module` from the tensor of the same name, converted from bf16, fp16, fp32 or fp64 to the
// parameter's dtype. Reads one tensor at a time. Local.
// Throws io::Error(kModel) with ONE table of every name that is missing or surplus and every shape or dtype that does
// not fit; nothing has been written then. `lm_head.weight` of a model with tied embeddings and `rotary_emb.inv_freq`
// tensors of old files are tolerated.
void load_weights(torch::nn::Module& module, const io::ModelFolder& folder);

}  // namespace fsdp::models
