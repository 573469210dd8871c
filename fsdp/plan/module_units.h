#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "fsdp/plan/inspect.h"
#include "plan/model.h"

namespace fsdp::plan {

// A module as the planner sees it, and its parameters with the units they belong to.
struct ModuleUnits {
  struct Parameter {
    at::Tensor tensor;
    size_t unit;          // index among the blocks; their number: the root
    at::ScalarType type;  // that it is computed with
  };
  PlannedModel model;
  std::vector<Parameter> parameters;
};

// As fully_shard() would split it: `options` names units, parameters to ignore and modules that keep their dtype.
// Throws Error(kUsage); see inspect().
ModuleUnits units_of(torch::nn::Module& module, const InspectOptions& options);

}  // namespace fsdp::plan
