#pragma once

#include <functional>
#include <memory>
#include <string>

#include "fsdp/checkpoint/state/module_tensors.h"
#include "fsdp/checkpoint/state/state.h"

namespace fsdp::checkpoint {

// What a sharded model consists of. Throws Error(kUsage), naming `operation`, without a model, or if nothing of it is
// sharded.
ModuleTensors tensors_of(const ModelRef& model, const std::string& operation);

// Main weights as slices; buffers and parameters that are not sharded as replicas; of them what State::keeps says.
// `tensors` must outlive it. Throws Error(kUsage) for a parameter that trains and is not kept.
std::unique_ptr<Stateful> make_module_state(const ModuleTensors& tensors,
                                            const std::function<bool(const std::string&)>& keeps = {});

}  // namespace fsdp::checkpoint
