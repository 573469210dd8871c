#include "fsdp/unit/unit.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "fsdp/base/check.h"
#include "fsdp/base/units.h"
#include "fsdp/unit/context.h"

namespace fsdp {
namespace {

int64_t bytes_per_rank(const DBuffer& buffer) { return buffer.defined() ? buffer.bytes() : 0; }

std::string phase_of(const UnitState& unit) {
  for (const auto& group : unit.groups) {
    if (group->weight_phase() != WeightPhase::kUnsharded) return name(group->weight_phase());
  }
  return name(WeightPhase::kUnsharded);
}

int64_t parameters_in(const UnitState& unit) {
  int64_t count = 0;
  for (const auto& group : unit.groups) {
    for (const int64_t numel : group->layout().numels) count += numel;
  }
  return count;
}

// Name and phase to the left, figures to the right.
std::string table_line(const std::array<std::string, 7>& cells) {
  constexpr std::array<size_t, 6> kWidths{32, 8, 10, 13, 13, 9};
  const auto blanks = [](size_t width, size_t used) { return std::string(width > used ? width - used : 0, ' '); };
  std::string line = cells[0] + blanks(kWidths[0], cells[0].size());
  for (size_t i = 1; i < kWidths.size(); ++i) line += blanks(kWidths[i], cells[i].size()) + cells[i];
  return line + "  " + cells.back() + "\n";
}

std::string describe_unit(const UnitState& unit, int depth) {
  int64_t gathered = 0;
  int64_t sharded = 0;
  int64_t padding = 0;
  size_t tensors = 0;
  for (const auto& group : unit.groups) {
    gathered += group->unsharded().bytes();
    sharded += group->main_weight().bytes();
    padding += group->layout().padding();
    tensors += group->num_parameters();
  }
  const int64_t count = parameters_in(unit);
  const std::string title = std::string(static_cast<size_t>(2 * depth), ' ') + unit.name;
  std::array<char, 16> percent{};
  std::snprintf(percent.data(), percent.size(), "%.2f%%",
                count > 0 ? 100.0 * static_cast<double>(padding) / static_cast<double>(count) : 0.0);
  return table_line({title, std::to_string(tensors), format_count(count), format_bytes(gathered), format_bytes(sharded),
                     percent.data(), phase_of(unit)});
}

void append_subtree(const UnitState& unit, int depth, std::string& text) {
  text += describe_unit(unit, depth);
  for (const UnitState* child : unit.children) append_subtree(*child, depth + 1, text);
}

std::vector<int> ids_of(const UnitState& unit, const std::vector<Unit>& units) {
  std::vector<int> ids;
  for (const Unit& other : units) {
    FSDP_CHECK(other.state()->context == unit.context, "[prefetch] unit '", other.state()->name,
               "' belongs to another world than unit '", unit.name, "'.");
    FSDP_CHECK(other.state().get() != &unit, "[prefetch] unit '", unit.name, "' stands in its own list.");
    ids.push_back(other.state()->id);
  }
  return ids;
}

}  // namespace

void Unit::unshard() { state_->context->unshard(*state_, "Unit::unshard()"); }

UnshardHandle Unit::unshard_async() {
  state_->context->begin_unshard(*state_, "Unit::unshard_async()");
  return UnshardHandle(state_);
}

void UnshardHandle::wait() { unit_->context->unshard(*unit_, "UnshardHandle::wait()"); }

void Unit::reshard() {
  state_->context->rethrow_deferred();
  state_->context->reshard(*state_);
}

void Unit::set_requires_gradient_sync(bool sync) {
  for (UnitState* unit : state_->subtree()) unit->requires_sync = sync;
}

void Unit::set_requires_all_reduce(bool all_reduce) {
  for (UnitState* unit : state_->subtree()) unit->requires_all_reduce = all_reduce;
}

void Unit::set_reshard_after_forward(ReshardAfterForward reshard) {
  for (UnitState* unit : state_->subtree()) unit->set_reshard_after_forward(reshard);
}

void Unit::prefetch_in_forward(const std::vector<Unit>& units) {
  state_->context->set_units_ahead(*state_, schedule::Pass::kForward, ids_of(*state_, units));
}

void Unit::prefetch_in_backward(const std::vector<Unit>& units) {
  state_->context->set_units_ahead(*state_, schedule::Pass::kBackward, ids_of(*state_, units));
}

void Unit::set_reshard_after_backward(bool reshard) {
  for (UnitState* unit : state_->subtree()) unit->reshard_after_backward = reshard;
}

void Unit::set_all_reduce_hook(const AllReduceHook& hook) {
  for (UnitState* unit : state_->subtree()) {
    for (const auto& group : unit->groups) group->gradients().set_all_reduce_hook(hook, group->unit_name());
  }
}

void Unit::set_gradient_divide_factor(double factor) { set_gradient_scale(GradScale::sum(factor)); }

void Unit::set_gradient_scale(const GradScale& scale) {
  FSDP_CHECK(scale.divisor > 0, "[set_gradient_scale] divisor: got ", scale.divisor, ", expected a number above 0.");
  GradScale resolved = scale;
  if (scale.kind == GradScale::Kind::kPerToken) {
    FSDP_CHECK(scale.tokens >= 0, "[set_gradient_scale] tokens of this rank: got ", scale.tokens,
               ", expected at least 0.");
    // Ranks along "tp" count the same tokens.
    const int64_t copies = state_->context->ranks_of_step()->size() / state_->num_ranks;
    resolved.tokens = state_->context->sum_over_ranks(scale.tokens, "tokens") / copies;
    FSDP_CHECK(resolved.tokens > 0, "[set_gradient_scale] no rank has a token, so there is no gradient per token. ",
               "Leave such a step out.");
  }
  for (UnitState* unit : state_->subtree()) unit->scale = resolved;
}

std::string Unit::describe() const {
  std::string text = table_line({"unit", "tensors", "params", "gathered", "per rank", "padding", "weights"});
  append_subtree(*state_, 0, text);
  const Counters& counters = state_->context->counters();
  const RestingBytes resting = resting_bytes();
  text += "at rest " + format_bytes(resting.main_weight + resting.model_weight + resting.main_grad) +
          " per rank (weights " + format_bytes(resting.main_weight + resting.model_weight) + ", gradients " +
          format_bytes(resting.main_grad) + "); gathered now " + format_bytes(counters.resident_unsharded_bytes) +
          ", at most " + format_bytes(counters.peak_unsharded_bytes) + "\n";
  return text;
}

Counters Unit::counters() const { return state_->context->counters(); }

void Unit::reset_counters() {
  Counters& counters = state_->context->counters();
  const int64_t resident = counters.resident_unsharded_bytes;
  const int64_t allocations = counters.buffer_allocations;
  counters = {};
  counters.resident_unsharded_bytes = resident;
  counters.peak_unsharded_bytes = resident;
  counters.buffer_allocations = allocations;
}

RestingBytes Unit::resting_bytes() const {
  RestingBytes bytes;
  for (const UnitState* unit : state_->subtree()) {
    for (const auto& group : unit->groups) {
      bytes.main_weight += bytes_per_rank(group->main_weight());
      bytes.main_grad += bytes_per_rank(group->gradients().main_grad());
      bytes.model_weight += group->resting_copy_bytes();
      int64_t shards = 1;
      for (const auto& comm : group->main_weight_comms()) shards *= comm->size();
      bytes.padding +=
          group->layout().padding() / shards * static_cast<int64_t>(group->main_weight().local().element_size());
    }
  }
  return bytes;
}

MemoryCategories Unit::memory() const {
  const RestingBytes resting = resting_bytes();
  const Context& context = *state_->context;
  MemoryCategories memory;
  memory.params = resting.main_weight + resting.model_weight;
  memory.grads = resting.main_grad;
  for (const UnitState* unit : state_->subtree()) {
    for (const auto& group : unit->groups) {
      if (group->disk() && !group->is_on_host() && group->residence() == Residence::kReleased) {
        memory.params -= group->resting_copy_bytes();
      }
      if (!group->is_on_host() && !group->disk()) continue;
      memory.params -= bytes_per_rank(group->main_weight());
      memory.grads -= bytes_per_rank(group->gradients().main_grad());
    }
  }
  for (const UnitState* unit : context.units()) {
    if (unit == nullptr) continue;
    memory.gathered += unit->gathered_bytes();
    for (const auto& group : unit->groups) memory.reduce += group->gradients().resident_bytes();
  }
  memory.idle = std::max<int64_t>(0, context.allocator()->reserved_bytes() - memory.gathered - memory.reduce);
  return memory;
}

int64_t Unit::num_parameters() const {
  int64_t count = 0;
  for (const UnitState* unit : state_->subtree()) count += parameters_in(*unit);
  return count;
}

int64_t Unit::num_units() const { return static_cast<int64_t>(state_->subtree().size()); }

int64_t Unit::largest_unit_bytes() const {
  int64_t largest = 0;
  for (const UnitState* unit : state_->subtree()) largest = std::max(largest, unit->released_bytes());
  return largest;
}

}  // namespace fsdp
