#pragma once

#include "fsdp/unit/options.h"
#include "fsdp/unit/sharding/subject.h"

namespace fsdp {

// Throws Error(kUsage) for types that weights, gradients or buffers cannot have. Local.
void check_precision(const ShardOptions& options);

// What of `precision` holds for one parameter: modules in keep_fp32 have their own, and only layers of fsdp::fp8()
// travel as fp8 numbers. Throws Error(kUsage), naming it, where such a layer cannot. Local.
Precision precision_of(const SubjectParameter& parameter, const Precision& precision);

}  // namespace fsdp
