#pragma once

#include "fsdp/optim/adamw.h"
#include "fsdp/optim/flat_parameters.h"
#include "fsdp/optim/gradient_factor.h"

namespace fsdp {

// AdamW's part of optimizers that leave some parameters to it.

// Throws Error(kUsage) for numbers out of range.
void check_options(const AdamWOptions& options);
// Its two moments. Throws Error(kUsage) for digits that only LowBitAdamW keeps.
LeafNeeds adamw_needs(const AdamWOptions& options);
void adamw_update(const FlatRun& run, const AdamWOptions& options, const GradientFactor& factor);

}  // namespace fsdp
