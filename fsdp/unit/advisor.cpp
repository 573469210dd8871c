#include "fsdp/unit/advisor.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numeric>

#include "fsdp/base/units.h"
#include "fsdp/memory/meminfo.h"
#include "fsdp/unit/context.h"

namespace fsdp {
namespace {

constexpr int64_t kSmallModel = int64_t{64} << 20;  // gathered bytes below which size does not matter
constexpr int64_t kToyModel = int64_t{1} << 20;     // below which time does not matter
constexpr int64_t kSmallUnit = int64_t{256} << 10;  // a gather of fewer bytes takes as long as one of none
constexpr int64_t kStepsToMeasure = 10;

std::string percent(double share) { return std::to_string(std::lround(100 * share)) + "%"; }

int64_t total_bytes(const std::vector<UnitFigures>& units) {
  return std::accumulate(units.begin(), units.end(), int64_t{0},
                         [](int64_t sum, const UnitFigures& unit) { return sum + unit.gathered_bytes; });
}

template <class Key>
const UnitFigures& largest(const std::vector<UnitFigures>& units, Key key) {
  return *std::max_element(units.begin(), units.end(),
                           [key](const UnitFigures& a, const UnitFigures& b) { return a.*key < b.*key; });
}

// A number from the first line of a file that holds nothing else; 0 if there is none.
int64_t number_in(const char* path) {
  std::ifstream file(path);
  int64_t number = 0;
  file >> number;
  return file ? number : 0;
}

std::vector<UnitFigures> figures_of(const Context& context) {
  std::vector<UnitFigures> list;
  for (const UnitState* unit : context.units()) {
    if (unit == nullptr || unit->released_bytes() == 0) continue;
    UnitFigures figures{unit->name, unit->released_bytes(), 0, unit->waited_ms};
    for (const auto& group : unit->groups) {
      if (group->residence() != Residence::kReleased) continue;
      figures.padding_bytes +=
          group->layout().padding() * static_cast<int64_t>(group->unsharded().local().element_size());
    }
    list.push_back(std::move(figures));
  }
  return list;
}

std::vector<MemoryKnob> knobs_of(const Context& context) {
  int64_t kept = 0;     // between forward and backward
  int64_t largest = 0;  // of the units that are gathered ahead
  int64_t wide = 0;     // gathered in fp32
  for (const UnitState* unit : context.units()) {
    if (unit == nullptr) continue;
    for (const auto& group : unit->groups) {
      const int64_t bytes = group->unsharded().bytes();
      if (group->residence() == Residence::kPersistent || !unit->reshard_after_forward) kept += bytes;
      if (group->unsharded().local().scalar_type() == at::kFloat) wide += bytes;
    }
    largest = std::max(largest, unit->released_bytes());
  }
  const int ranks = context.world().size;
  return {{"Strategy::kOptimGradsParams with reshard_after_forward = true", kept},
          {"Precision::bf16()", kept > 0 ? wide / 2 : std::min(wide, 2 * largest) / 2},
          {"Schedule::on_demand()", context.schedule().kind == schedule::Kind::kOnDemand ? 0 : largest},
          {"smaller units (shard_where by size)", largest},
          {"twice as many ranks", wide / std::max(ranks, 1) / 2}};
}

}  // namespace

MemoryFigures measure_memory() {
  MemoryFigures memory{meminfo_bytes("MemTotal") - meminfo_bytes("MemAvailable"), meminfo_bytes("MemTotal")};
  const int64_t limit = number_in("/sys/fs/cgroup/memory.max");
  if (limit > 0 && limit < memory.limit) memory = {number_in("/sys/fs/cgroup/memory.current"), limit};
  return memory;
}

std::string advise_on_size(const std::vector<UnitFigures>& units, int world) {
  const int64_t total = total_bytes(units);
  if (world == 1 || total < kSmallModel) return {};
  const UnitFigures& unit = largest(units, &UnitFigures::gathered_bytes);
  const double share = static_cast<double>(unit.gathered_bytes) / static_cast<double>(total);
  if (share <= 0.5) return {};
  return c10::str(
      "unit '", unit.name, "' holds ", percent(share), " of the model: ", format_bytes(unit.gathered_bytes),
      " are gathered at once and nothing overlaps. Shard inner modules first: fully_shard(*layer, mesh) for ",
      "each layer, or shard_where(model, by_size(n), mesh).");
}

std::string advise_on_padding(const std::vector<UnitFigures>& units) {
  if (total_bytes(units) < kSmallModel) return {};
  const UnitFigures& unit = largest(units, &UnitFigures::padding_bytes);
  const double share = static_cast<double>(unit.padding_bytes) / static_cast<double>(unit.gathered_bytes);
  if (share <= 0.03) return {};
  return c10::str("unit '", unit.name, "': ", percent(share), " of its ", format_bytes(unit.gathered_bytes),
                  " is padding. Choose a smaller granule (ShardOptions::layout), or put more parameters in the unit.");
}

std::string advise_on_latency(const std::vector<UnitFigures>& units, double exposed_share) {
  if (units.size() < 4 || exposed_share <= 0.1 || total_bytes(units) < kToyModel) return {};
  const int64_t mean = total_bytes(units) / static_cast<int64_t>(units.size());
  if (mean >= kSmallUnit) return {};
  return c10::str("the ", units.size(), " units have ", format_bytes(mean),
                  " on average, so latency decides: ", percent(exposed_share),
                  " of a step is waiting. Put several modules in one unit: ", "fully_shard({&a, &b}, mesh).");
}

std::string advise_on_exposure(const std::vector<UnitFigures>& units, double exposed_share) {
  if (exposed_share <= 0.2 || total_bytes(units) < kToyModel) return {};
  const UnitFigures& unit = largest(units, &UnitFigures::waited_ms);
  return c10::str(
      percent(exposed_share), " of a step is waiting for communication, most of it for unit '", unit.name,
      "'. Compute more per step (larger microbatches), gather less often (reshard_after_forward = false, or ",
      "Strategy::kOptimGrads, if memory allows), or gather further ahead (Schedule::static_order(2)).");
}

std::string advise_on_memory(const MemoryFigures& memory, std::vector<MemoryKnob> knobs) {
  if (memory.limit == 0 || static_cast<double>(memory.used) < 0.9 * static_cast<double>(memory.limit)) return {};
  std::stable_sort(knobs.begin(), knobs.end(),
                   [](const MemoryKnob& a, const MemoryKnob& b) { return a.saved_bytes > b.saved_bytes; });
  std::string text = c10::str(format_bytes(memory.used), " of ", format_bytes(memory.limit), " memory are in use. ");
  int count = 0;
  for (const MemoryKnob& knob : knobs) {
    if (knob.saved_bytes == 0 || count == 3) break;
    text += c10::str(count++ == 0 ? "What would save most on each rank: " : "; ", knob.change, ", ",
                     format_bytes(knob.saved_bytes));
  }
  return count == 0 ? text + "Use smaller microbatches." : text + ".";
}

std::string advise_on_connections(const char* setting, bool uses_cuda) {
  if (!uses_cuda || setting == nullptr || std::string(setting) != "1") return {};
  return "CUDA_DEVICE_MAX_CONNECTIONS=1 makes gathers wait for computation, so nothing overlaps. Unset it, or set 8 or "
         "more.";
}

void Advisor::after_recorded_gradient(const std::string& parameter) {
  say("gradients of gradients",
      c10::str("a backward with create_graph brought '", parameter, "' a gradient that has a graph. Sharded gradients ",
               "have none: a loss that is computed from them trains nothing through them. Use ",
               "torch::autograd::grad(..., create_graph), whose gradients are this rank's and keep their graph."));
}

void Advisor::say(const std::string& subject, const std::string& text) {
  if (!text.empty() && said_.insert(subject).second) give_advice({subject, text});
}

double Advisor::exposed_share(const Context& context) const {
  double waited_ms = -waited_before_ms_;
  for (const UnitState* unit : context.units()) waited_ms += unit == nullptr ? 0 : unit->waited_ms;
  const std::chrono::duration<double, std::milli> wall = std::chrono::steady_clock::now() - first_step_end_;
  return waited_ms / wall.count();
}

// The first step learns the order, so measuring starts after it.
void Advisor::after_step(const Context& context) {
  ++steps_;
  if (steps_ > 1 && steps_ % kStepsToMeasure != 1) return;
  const std::vector<UnitFigures> units = figures_of(context);
  if (steps_ == 1) {
    first_step_end_ = std::chrono::steady_clock::now();
    for (const UnitFigures& unit : units) waited_before_ms_ += unit.waited_ms;
    if (!units.empty()) {
      say("one large unit", advise_on_size(units, context.world().size));
      say("padding", advise_on_padding(units));
    }
    say("CUDA_DEVICE_MAX_CONNECTIONS",
        advise_on_connections(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), context.device().is_cuda()));
  } else {
    const double share = exposed_share(context);
    say("small units", advise_on_latency(units, share));
    if (said_.count("small units") == 0) say("exposed communication", advise_on_exposure(units, share));
  }
  say("memory", advise_on_memory(measure_memory(), knobs_of(context)));
}

}  // namespace fsdp
