#include "fsdp/pipeline/uses.h"

namespace fsdp::pipeline {

void Uses::keep(const Turn& forward, UnitState* root) {
  if (root == nullptr) return;
  std::vector<Kept>& kept = kept_[{forward.stage, forward.microbatch}];
  for (const UnitState* unit : root->subtree()) {
    for (const auto& group : unit->groups) kept.push_back({group, group->take_use()});
  }
}

void Uses::give_back(const Turn& turn) {
  const auto found = kept_.extract({turn.stage, turn.microbatch});
  if (found.empty()) return;
  for (Kept& each : found.mapped()) each.group->put_use(std::move(each.use));
}

}  // namespace fsdp::pipeline
