#include "fsdp/unit/unit_state.h"

#include <algorithm>
#include <cmath>

#include "fsdp/base/check.h"
#include "fsdp/comm/connection.h"
#include "fsdp/group/touch_table.h"
#include "fsdp/unit/context.h"

namespace fsdp {

UnitState::UnitState(std::shared_ptr<Context> owner, std::string unit_name)
    : context(std::move(owner)), name(std::move(unit_name)) {
  context->add_unit(*this);
}

UnitState::~UnitState() {
  const auto forget = [](const c10::StorageImpl* storage, const ParameterGroup* group) {
    TouchTable::instance().remove(storage, group);
  };
  watched_main_grads.resize(groups.size(), nullptr);
  for (size_t i = 0; i < groups.size(); ++i) {
    ParameterGroup* group = groups[i].get();
    forget(group->unsharded().local().storage().unsafeGetStorageImpl(), group);
    forget(group->main_weight().local().storage().unsafeGetStorageImpl(), group);
    forget(group->gradient_marks().storage(), group);
    forget(watched_main_grads[i], group);
  }
  for (UnitState* child : children) child->parent = nullptr;
  if (parent != nullptr) std::erase(parent->children, this);
  context->remove_unit(*this);
}

void UnitState::watch_main_grads() {
  watched_main_grads.resize(groups.size(), nullptr);
  for (size_t i = 0; i < groups.size(); ++i) {
    const DBuffer& grads = groups[i]->gradients().main_grad();
    const auto* now = grads.defined() ? grads.local().storage().unsafeGetStorageImpl() : nullptr;
    if (now == watched_main_grads[i]) continue;
    TouchTable::instance().remove(watched_main_grads[i], groups[i].get());
    if (now != nullptr) TouchTable::instance().add(now, {groups[i].get(), this, Role::kMainGrad});
    watched_main_grads[i] = now;
  }
}

UnitState& UnitState::root() {
  UnitState* unit = this;
  while (unit->parent != nullptr) unit = unit->parent;
  return *unit;
}

std::vector<UnitState*> UnitState::subtree() {
  std::vector<UnitState*> units{this};
  for (size_t i = 0; i < units.size(); ++i) {
    const std::vector<UnitState*>& below = units[i]->children;
    units.insert(units.end(), below.begin(), below.end());
  }
  return units;
}

bool UnitState::current() const {
  return std::all_of(groups.begin(), groups.end(), [](const auto& group) { return group->current(); });
}

bool UnitState::settled() const {
  return std::all_of(groups.begin(), groups.end(),
                     [](const auto& group) { return !group->gradients().used() || group->gradients().complete(); });
}

bool UnitState::read_without_gradient() const {
  return std::any_of(groups.begin(), groups.end(), [](const auto& group) { return group->read_without_gradient(); });
}

bool UnitState::took_part() const {
  return std::any_of(groups.begin(), groups.end(), [](const auto& group) {
    return group->gradients().used() || group->gradients().arrived_in_backward();
  });
}

const UnitState* UnitState::enclosing() const {
  const UnitState* unit = parent;
  while (unit != nullptr && unit->groups.empty()) unit = unit->parent;
  return unit;
}

void UnitState::set_reshard_after_forward(ReshardAfterForward reshard) {
  const int* group_size = std::get_if<int>(&reshard);
  reshard_after_forward = group_size != nullptr ? *group_size > 1 : std::get<bool>(reshard);
  for (const auto& group : groups) {
    const comm::Comm& shard = *group->links().shard;
    std::shared_ptr<comm::Comm> forward;
    if (group_size != nullptr) {
      FSDP_CHECK(*group_size >= 1 && shard.size() % *group_size == 0, "[reshard_after_forward] unit '", name, "': got ",
                 *group_size, ", expected a divisor of the ", shard.size(),
                 " ranks of the shard axis, or true or false.");
      if (*group_size > 1 && *group_size < shard.size()) {
        const auto first = shard.ranks().begin() + (shard.rank() - shard.rank() % *group_size);
        forward = context->world().connection->group(std::vector<int>(first, first + *group_size));
        forward->open(context->device());
      }
    }
    group->set_forward_group(std::move(forward));
  }
}

ReduceReach UnitState::reduce_reach() const {
  return is_due(replica_reduce, last_microbatch) && requires_all_reduce ? ReduceReach::kAllReplicas
                                                                        : ReduceReach::kShardGroup;
}

ReductionFactors UnitState::reduction_factors() const {
  // About 1 / sqrt(ranks); the same on every rank, whatever their divisors.
  const double after = std::exp2(-std::round(std::log2(num_ranks) / 2));
  switch (scale.kind) {
    case GradScale::Kind::kMean:
      return {1.0 / (num_ranks * scale.divisor), after};
    case GradScale::Kind::kSum:
      return {1.0 / scale.divisor, 1};
    case GradScale::Kind::kPerToken:
      return {1.0 / (static_cast<double>(scale.tokens) * scale.divisor), after};
  }
  return {};
}

int64_t UnitState::gathered_bytes() const {
  int64_t bytes = 0;
  for (const auto& group : groups) bytes += group->gathered_bytes();
  return bytes;
}

int64_t UnitState::released_bytes() const {
  int64_t bytes = 0;
  for (const auto& group : groups) {
    if (group->residence() == Residence::kReleased) bytes += group->unsharded().bytes();
  }
  return bytes;
}

}  // namespace fsdp
