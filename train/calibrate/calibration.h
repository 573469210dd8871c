#pragma once

#include <c10/core/ScalarType.h>

#include "plan/time/hardware.h"

namespace fsdp::train {

// This machine's CPU as the planner wants it, with the threads that LibTorch has and the operators that models are made
// of: the rate and the overhead of linear layers, forward and backward, and of attention's two passes, with and without
// a mask, an operator's overhead, and the speed of memory; all in turns (turns.h). Takes about `seconds`, a second at
// least. Links are those of plan::time::find_hardware("cpu-core"): networks are known, or
// measured, by who has one. `dtype`: fp32 or bf16, whose entry of peak_flops is what products reached, so that MFU is
// counted against that. Local; throws Error(kUsage) for another dtype.
plan::time::Hardware calibrate_cpu(c10::ScalarType dtype, double seconds);

}  // namespace fsdp::train
