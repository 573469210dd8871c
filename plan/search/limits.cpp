#include "plan/search/limits.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "fsdp/base/units.h"
#include "plan/forecast/planned_work.h"

namespace fsdp::plan {
namespace {

// Changes of one thing.
std::vector<Knob> all_knobs(const PlannedModel& model, const Setup& setup) {
  std::vector<Knob> knobs;
  const auto add = [&](Lever lever, const std::string& text, const std::function<void(Setup&)>& change) {
    Setup changed = setup;
    change(changed);
    if (!goes(changed)) return;
    knobs.push_back({lever, text, changed, {}});
  };
  for (const models::Recompute recompute : kAllRecomputes) {
    const bool is_of_parts = recompute == models::Recompute::kElementwise || recompute == models::Recompute::kGateUp;
    if (recompute == setup.work.recompute || (is_of_parts && setup.tensor > 1)) continue;  // check_axes()
    add(Lever::kRecompute, "recompute " + std::string(name(recompute)), [&](Setup& s) {
      s.work.recompute = recompute;
      s.work.recompute_every = 1;
    });
  }
  if (setup.work.microbatch_sequences % 2 == 0) {
    add(Lever::kMicrobatch, "microbatches of half the size", [](Setup& s) {
      s.work.microbatch_sequences /= 2;
      s.work.microbatches *= 2;
    });
  }
  if (setup.work.microbatches % 2 == 0) {
    add(Lever::kMicrobatch, "microbatches of twice the size", [](Setup& s) {
      s.work.microbatch_sequences *= 2;
      s.work.microbatches /= 2;
    });
  }
  if (setup.precision == parse_planned_precision("bf16"))
    add(Lever::kPrecision, "gradients in bf16 on the wire",
        [](Setup& s) { s.precision = parse_planned_precision("bf16_reduce"); });
  if (setup.precision == parse_planned_precision("fp16"))
    add(Lever::kPrecision, "gradients in fp16 on the wire",
        [](Setup& s) { s.precision = parse_planned_precision("fp16_reduce"); });
  if (setup.precision == parse_planned_precision("fp32"))
    add(Lever::kPrecision, "precision bf16", [](Setup& s) { s.precision = parse_planned_precision("bf16"); });
  for (const StageOrder& other : stage_orders(model, setup)) {
    if (other.is_of(setup)) continue;
    const std::string several =
        other.stages_per_rank > 1 ? ", " + std::to_string(other.stages_per_rank) + " stages on each rank" : "";
    add(Lever::kStages, "pipeline schedule " + std::string(name(other.order)) + several,
        [&](Setup& s) { other.apply_to(s); });
  }
  const schedule::Schedule& order = setup.schedule;
  if (order.kind == schedule::Kind::kStaticOrder && order.forward_depth == order.backward_depth) {
    const int depth = order.forward_depth + 1;
    add(Lever::kPrefetch, std::to_string(depth) + " units gathered ahead",
        [depth](Setup& s) { s.schedule.forward_depth = s.schedule.backward_depth = depth; });
  }
  const bool may_grow = 2 * setup.world() <= kMostRanks && setup.transport != Transport::kSharedMemory;
  if (may_grow && setup.strategy != Strategy::kNoShard)
    add(Lever::kRanks, "twice the ranks, as shards", [](Setup& s) { s.shards *= 2; });
  for (const Sharding& other : shardings(setup)) {
    if (other.is_of(setup)) continue;
    std::string text = std::string(fsdp::name(other.strategy)) + " on " + std::to_string(other.replicas) + " x " +
                       std::to_string(other.shards);
    if (other.reshard) text += ", weights resting in groups of " + std::to_string(setup.node_size);
    add(Lever::kSharding, text, [&](Setup& s) { other.apply_to(s); });
  }
  return knobs;
}

std::string largest_part(const Report& report) {
  const auto& bytes = report.memory.bytes;
  const auto largest = std::max_element(bytes.begin(), bytes.end());
  return std::string(name(static_cast<Part>(largest - bytes.begin()))) + " (" + format_bytes(*largest) + ")";
}

double busy_seconds(const StepFloor& floor, Bound bound) {
  return bound == Bound::kCompute ? floor.compute : bound == Bound::kNodeLinks ? floor.node_links : floor.network;
}

std::string limiting_text(const Report& report, const Limits& limits, const SearchSpace& space) {
  if (limits.memory_is_short)
    return "memory: " + format_bytes(limits.price.memory - space.memory) + " too much; the largest part is " +
           largest_part(report);
  if (limits.price.step)
    return limits.price.step->limiting + " (critical path: " + to_text(limits.price.step->path) + ")";
  return std::string(name(limits.price.floor.bound()));
}

bool can_be_priced(const PlannedModel& model, const Setup& setup, const SearchSpace& space) {
  return !space.hardware || !why_no_forecast(model, setup, space.options.network, *space.hardware);
}

bool helps(const Price& changed, const Limits& now, const SearchSpace& space) {
  if (now.memory_is_short) return changed.memory < now.price.memory;
  if (space.memory > 0 && changed.memory > space.memory) return false;
  constexpr double kWorthIt = 0.999;
  if (now.price.step) return changed.seconds() < kWorthIt * now.price.seconds();
  const Bound bound = now.price.floor.bound();
  return busy_seconds(changed.floor, bound) < kWorthIt * busy_seconds(now.price.floor, bound) &&
         changed.seconds() < now.price.seconds();
}

std::vector<Knob> first_of_each_lever(const std::vector<Knob>& knobs) {
  constexpr size_t kMost = 3;
  std::vector<Knob> first;
  for (const Knob& knob : knobs) {
    const bool is_new =
        std::none_of(first.begin(), first.end(), [&](const Knob& other) { return other.lever == knob.lever; });
    if (is_new && first.size() < kMost) first.push_back(knob);
  }
  return first;
}

}  // namespace

Limits find_limits(const PlannedModel& model, const Report& report, const SearchSpace& space) {
  Limits limits;
  limits.price = price(model, report, space);
  limits.memory_is_short = space.memory > 0 && limits.price.memory > space.memory;
  limits.limiting = limiting_text(report, limits, space);
  for (Knob& knob : all_knobs(model, report.setup)) {
    if (!can_be_priced(model, knob.setup, space)) continue;
    knob.price = price(model, knob.setup, space);
    if (helps(knob.price, limits, space)) limits.knobs.push_back(knob);
  }
  // What is enough, at the least price in time; then what helps most.
  const auto order = [&](const Knob& knob) {
    const auto memory = static_cast<double>(knob.price.memory);
    if (!limits.memory_is_short) return std::tuple(false, knob.price.seconds(), memory);
    const bool is_enough = knob.price.memory <= space.memory;
    return std::tuple(!is_enough, is_enough ? knob.price.seconds() : memory, memory);
  };
  std::stable_sort(limits.knobs.begin(), limits.knobs.end(),
                   [&](const Knob& a, const Knob& b) { return order(a) < order(b); });
  limits.knobs = first_of_each_lever(limits.knobs);
  return limits;
}

}  // namespace fsdp::plan
