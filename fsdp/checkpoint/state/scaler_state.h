#pragma once

#include <memory>

#include "fsdp/checkpoint/state/state.h"

namespace fsdp::checkpoint {

// The loss scale and the steps since it changed, to the bit. A checkpoint of a run without a scaler leaves it as it is.
// `scaler` must outlive it.
std::unique_ptr<Stateful> make_scaler_state(GradScaler& scaler);

}  // namespace fsdp::checkpoint
