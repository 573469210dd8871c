#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "fsdp/comm/comm.h"
#include "fsdp/unit/options.h"

namespace fsdp {

// What ranks must have in common before they share a unit.
struct UnitDescription {
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
  const ShardOptions* options;
  std::string meshes = "";  // of the groups, in order
};

// COLLECTIVE. Throws Error(kUsage) naming the first rank that describes another unit than rank 0: other parameters,
// shapes, dtypes or options; or, with InitialWeights::kVerify, other values. With kBroadcast, rank 0's values go to
// all.
void agree_on_unit(const UnitDescription& unit, comm::Comm& comm);

}  // namespace fsdp
