#pragma once

#include "fsdp/plan/module_units.h"
#include "plan/activations.h"

namespace fsdp::plan {

// What InspectOptions::forward and its backward hold of each unit, found on tensors without memory. Local; random
// numbers and the module are afterwards as they were.
Activations account_for_activations(torch::nn::Module& module, const ModuleUnits& units,
                                    const std::function<at::Tensor()>& forward);

}  // namespace fsdp::plan
