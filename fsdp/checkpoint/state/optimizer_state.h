#pragma once

#include <memory>

#include "fsdp/checkpoint/state/module_tensors.h"
#include "fsdp/checkpoint/state/optimizer_adapter.h"
#include "fsdp/checkpoint/state/state.h"

namespace fsdp::checkpoint {

// The tensors of an optimizer, cut like the parameters they belong to and named `<tensor>/<parameter>`; how often each
// parameter was updated (`step/<parameter>`); and the learning rates of its groups. Other options are the program's.
// `model` must outlive it. Throws Error(kUsage) for an optimizer that is not known, or with parameters of another
// model.
std::unique_ptr<Stateful> make_optimizer_state(const OptimizerRef& optimizer, const ModuleTensors& model);
// Of what looks like one.
std::unique_ptr<Stateful> make_optimizer_state(std::unique_ptr<OptimizerAdapter> optimizer, const ModuleTensors& model);

}  // namespace fsdp::checkpoint
