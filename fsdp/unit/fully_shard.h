#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "fsdp/mesh/mesh.h"
#include "fsdp/unit/options.h"
#include "fsdp/unit/unit.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn
namespace torch::jit {
struct Module;
}  // namespace torch::jit

namespace fsdp {

// Shards the parameters of `module` that no nested unit owns yet, over the mesh axis "shard". Call it on the inner
// modules first, then on the root; the module itself is not changed, wrapped or hooked: what it reads is seen from the
// operators it runs.
// COLLECTIVE over the mesh, same order of calls everywhere. Afterwards the module's parameters keep shape and identity,
// but their memory is filled only while the unit is in use; optimizers work on fsdp::parameters(module).
// The parameters must be floating point leaves without gaps in memory, and all of a world's on one device: the CPU,
// or a GPU, for which the library fsdp::cuda is loaded then (load_cuda). On a GPU nothing of a step waits for it on the
// host; gathers and reductions are work of streams of their own. uint8 leaves without gradients are sharded too, and
// stay bytes whatever Precision says: codes of quantised weights.
// Throws Error(kUsage): a parameter is unsuitable (it is named), ranks differ in layout, options or initial weights
// (the first differing rank is named), nothing of the module is left to shard.
Unit fully_shard(torch::nn::Module& module, const Mesh& mesh, const ShardOptions& options = {});

// Several modules, one unit: their parameters are gathered and reduced together. None may lie inside another; names
// start with the module's position, "0.weight". Inner units of theirs become nested units.
Unit fully_shard(const std::vector<torch::nn::Module*>& modules, const Mesh& mesh, const ShardOptions& options = {});

// The same for a TorchScript module. Switches LibTorch's tensor-expression fuser off, process-wide, because compiled
// kernels read weights unseen; other fusions stay. Frozen modules have no parameters and are refused.
Unit fully_shard(torch::jit::Module& module, const Mesh& mesh, const ShardOptions& options = {});

}  // namespace fsdp
