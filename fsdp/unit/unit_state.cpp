#include "fsdp/unit/unit_state.h"

#include <algorithm>

#include "fsdp/unit/context.h"
#include "fsdp/unit/touch_table.h"

namespace fsdp {

UnitState::UnitState(std::shared_ptr<Context> owner, std::string unit_name)
    : context(std::move(owner)), name(std::move(unit_name)) {
  context->add_unit(*this);
}

UnitState::~UnitState() {
  for (const auto& group : groups) {
    TouchTable::instance().remove(group->unsharded().local().storage().unsafeGetStorageImpl());
    TouchTable::instance().remove(group->main_weight().local().storage().unsafeGetStorageImpl());
  }
  for (UnitState* child : children) child->parent = nullptr;
  if (parent != nullptr) std::erase(parent->children, this);
  context->remove_unit(*this);
}

bool UnitState::is_ancestor_of(const UnitState& other) const {
  for (const UnitState* unit = other.parent; unit != nullptr; unit = unit->parent) {
    if (unit == this) return true;
  }
  return false;
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
  return std::all_of(groups.begin(), groups.end(), [](const auto& group) {
    return !group->trainable() || !group->gradients().used() || group->gradients().complete();
  });
}

bool UnitState::has_frozen_parameters() const {
  return std::any_of(groups.begin(), groups.end(), [](const auto& group) { return !group->trainable(); });
}

int64_t UnitState::released_bytes() const {
  int64_t bytes = 0;
  for (const auto& group : groups) {
    if (group->residence() == Residence::kReleased) bytes += group->unsharded().bytes();
  }
  return bytes;
}

}  // namespace fsdp
