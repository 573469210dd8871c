#pragma once

#include <vector>

#include "fsdp/pipeline/order.h"

namespace fsdp::plan {

// Of one stage, in milliseconds.
struct StageTime {
  double forward = 0;  // of a microbatch, waits for weights and activations of other ranks included
  double backward = 0;
  double weights = 0;  // part of the backward: gradients of weights, which a split one computes by themselves
};

// From the first turn to the end of the last, of stages whose ranks take the turns of `order`; a message to a
// neighbour takes `message`, in which its receiver may compute something else. REQUIRES: pipeline::check().
double pipeline_ms(pipeline::Order order, const pipeline::Shape& shape, const std::vector<StageTime>& stages,
                   double message);

}  // namespace fsdp::plan
