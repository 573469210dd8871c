#pragma once

#include <c10/core/Device.h>

#include "fsdp/unit/options.h"
#include "fsdp/unit/sharding/subject.h"

namespace fsdp {

// Throws Error(kUsage) where sums of gradients of these parameters, which share a dtype, cannot have the order that is
// asked for: they would be rounded on their way, or added up by somebody who has an order of his own. Local.
void check_sum_order(const SubjectParameters& members, const ShardOptions& options, c10::Device device);

}  // namespace fsdp
