// What the tensors of a stage are called in the whole model, so that checkpoints and state dicts hold that model,
// whatever its stages are.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace fsdp::pipeline {

// From the name in the stage's module to that in the whole model.
using Naming = std::function<std::string(const std::string& own)>;

// "norm.weight" -> "decoder.norm.weight", where the prefix is "decoder.".
Naming prefixed(std::string prefix);

// Of a stage that begins with block `first` of the model: "blocks.0.up.weight" -> "blocks.4.up.weight", where the list
// is "blocks." and `first` 4. Other names stay as they are.
Naming numbered_from(std::string list, int64_t first);

// Gives the parameters and buffers of `module` their names; the last call for one counts. Returns those of
// fsdp::parameters(module), in that order; nothing where `naming` is empty. Throws Error(kUsage) if two get one name.
// Local.
std::vector<std::string> name_tensors(const torch::nn::Module& module, const Naming& naming);

}  // namespace fsdp::pipeline
