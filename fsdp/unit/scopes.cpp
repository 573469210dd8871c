#include "fsdp/unit/scopes.h"

#include <ATen/ATen.h>

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

FullParameters::FullParameters(const Unit& unit) : unit_(unit.state()) {
  unit_->context->unshard(*unit_, "full_parameters");
  ++unit_->full_scopes;
}

FullParameters::~FullParameters() {
  if (--unit_->full_scopes > 0) return;
  try {
    unit_->context->reshard(*unit_);
  } catch (...) {
    unit_->context->defer(std::current_exception());
  }
}

}  // namespace fsdp
