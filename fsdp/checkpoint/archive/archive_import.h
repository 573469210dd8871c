#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "fsdp/checkpoint/archive/lazy_archive.h"
#include "fsdp/checkpoint/state/module_tensors.h"

namespace fsdp {

// Finds in a file what belongs to each tensor of a module, in the module's order; undefined where the module leaves a
// tensor out of its files. What belongs to sharded parameters may still be unread.
using ImportTensors = std::function<std::vector<at::Tensor>(LazyArchive& file)>;

// By what module.load() reads. Leaves the tensors of `module` as they are, whatever happens. Throws Error(kCheckpoint)
// naming what is missing. Local.
std::vector<at::Tensor> import_into(torch::nn::Module& module, const ModuleTensors& tensors, LazyArchive& file);
// By name. Throws Error(kCheckpoint) naming what is missing. Local.
std::vector<at::Tensor> import_script(const ModuleTensors& tensors, LazyArchive& file);

// Throws Error(kCheckpoint) naming the first tensor whose shape or dtype in the file does not fit. Local.
void check_fit(const ModuleTensors& module, const std::vector<at::Tensor>& stored, LazyArchive& file);

}  // namespace fsdp
