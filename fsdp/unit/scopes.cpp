#include "fsdp/unit/scopes.h"

#include <ATen/ATen.h>

#include <utility>

#include "fsdp/unit/context.h"

namespace fsdp {

Microbatch::Microbatch(const Unit& root, bool is_last) : root_(root.state()) {
  root_->context->rethrow_deferred();
  for (UnitState* unit : root_->subtree()) unit->last_microbatch = is_last;
}

Microbatch::~Microbatch() {
  for (UnitState* unit : root_->subtree()) unit->last_microbatch = true;
}

NoSync::NoSync(const Unit& root) : root_(root.state()) {
  root_->context->rethrow_deferred();
  for (UnitState* unit : root_->subtree()) ++unit->no_sync_depth;
}

NoSync::~NoSync() {
  for (UnitState* unit : root_->subtree()) --unit->no_sync_depth;
}

ForwardOnly::ForwardOnly(const Unit& root) : root_(root.state()), previous_grad_mode_(at::GradMode::is_enabled()) {
  root_->context->rethrow_deferred();
  at::GradMode::set_enabled(false);
}

ForwardOnly::~ForwardOnly() {
  at::GradMode::set_enabled(previous_grad_mode_);
  try {
    root_->context->rest(*root_);
  } catch (...) {
    root_->context->defer(std::current_exception());
  }
}

FullParameters::FullParameters(const Unit& unit, WriteBack write_back)
    : FullParameters(std::vector<std::shared_ptr<UnitState>>{unit.state()}, write_back) {}

FullParameters::FullParameters(std::vector<std::shared_ptr<UnitState>> units, WriteBack write_back)
    : units_(std::move(units)), write_back_(write_back) {
  for (size_t i = 0; i < units_.size(); ++i) {
    try {
      units_[i]->context->unshard(*units_[i], "full_parameters");
    } catch (...) {
      write_back_ = WriteBack::kNo;
      release(i);
      throw;
    }
    ++units_[i]->full_scopes;
    if (write_back == WriteBack::kNo) continue;
    ++units_[i]->write_scopes;
    for (const auto& group : units_[i]->groups) group->isolate_unsharded();
  }
}

FullParameters::~FullParameters() { release(units_.size()); }

void FullParameters::release(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    UnitState& unit = *units_[i];
    const bool writes = write_back_ == WriteBack::kYes;
    try {
      if (writes) unit.context->write_back(unit);
    } catch (...) {
      unit.context->defer(std::current_exception());
    }
    if (unit.write_scopes > 0) --unit.write_scopes;
    if (--unit.full_scopes > 0) continue;
    try {
      unit.context->reshard(unit);
    } catch (...) {
      unit.context->defer(std::current_exception());
    }
  }
}

FullParameters full_parameters(const Unit& root, WriteBack write_back) {
  std::vector<std::shared_ptr<UnitState>> units;
  for (UnitState* unit : root.state()->subtree()) units.push_back(unit->self.lock());
  return FullParameters(std::move(units), write_back);
}

}  // namespace fsdp
