#pragma once

#include <c10/core/ScalarType.h>

#include "fsdp/mesh/mesh.h"
#include "plan/time/hardware.h"

namespace fsdp::train {

// calibrate_cpu() of all ranks of a host while all of them compute, the mean over them; and where there are several,
// the link between them: how long gathers and reductions of gradients take, alone, and how much they slow computing
// down. Takes about `seconds`, a tenth of it for links. The threads of each rank are those that set_threads() gave it.
// COLLECTIVE. Throws Error(kUsage) where ranks are on several hosts, and as calibrate_cpu() does.
plan::time::Hardware calibrate_ranks(const World& world, c10::ScalarType dtype, double seconds);

}  // namespace fsdp::train
