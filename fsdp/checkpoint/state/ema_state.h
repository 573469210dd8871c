#pragma once

#include <memory>

#include "fsdp/checkpoint/state/module_tensors.h"
#include "fsdp/checkpoint/state/state.h"

namespace fsdp::checkpoint {

// `average/<parameter>` and `step/<parameter>`, how often it was updated, cut like the parameters. What a checkpoint
// does not have begins anew with the next update. `ema` and `model` must outlive it. Throws Error(kUsage) for averages
// of another model; save() does while the model has the averages as its weights.
std::unique_ptr<Stateful> make_ema_state(Ema& ema, const ModuleTensors& model);

}  // namespace fsdp::checkpoint
