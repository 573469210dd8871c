#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "fsdp/group/parameter_group.h"
#include "fsdp/pipeline/order.h"
#include "fsdp/unit/unit_state.h"

namespace fsdp::pipeline {

// What the forward of each microbatch read of a stage's weights. Its own backward is to hear of it, which completes and
// reduces gradients unit by unit as they come; those that run in between have nothing to do with it. Local.
class Uses {
 public:
  // Of what was read since the last call. `root`: of the stage; null: it is not sharded.
  void keep(const Turn& forward, UnitState* root);
  // Before that microbatch's gradients of weights are computed.
  void give_back(const Turn& turn);

 private:
  struct Kept {
    std::shared_ptr<ParameterGroup> group;
    ParameterGroup::Use use;
  };
  std::map<std::pair<int, int>, std::vector<Kept>> kept_;  // by stage and microbatch
};

}  // namespace fsdp::pipeline
