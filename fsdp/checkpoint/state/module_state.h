#pragma once

#include <memory>

#include "fsdp/checkpoint/state/module_tensors.h"
#include "fsdp/checkpoint/state/state.h"

namespace fsdp::checkpoint {

// What a sharded model consists of. Throws Error(kUsage), naming `operation`, without a model, or if nothing of it is
// sharded.
ModuleTensors tensors_of(const ModelRef& model, const std::string& operation);

// Main weights as slices; buffers and parameters that are not sharded as replicas. `tensors` must outlive it.
std::unique_ptr<Stateful> make_module_state(const ModuleTensors& tensors);

}  // namespace fsdp::checkpoint
