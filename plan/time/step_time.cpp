#include "plan/time/step_time.h"

#include <algorithm>
#include <cstdio>
#include <map>

namespace fsdp::plan::time {
namespace {

std::string path_name(const Instruction& instruction, const StepWork& work) {
  const auto of_unit = [&](const char* what) {
    return std::string(what) + " " + work.units[static_cast<size_t>(instruction.unit)].name;
  };
  if (instruction.action == Action::kStartGather) return of_unit("gather");
  if (instruction.action == Action::kStartReduce) return of_unit("reduce");
  return describe(instruction, work);
}

// From the end back: what a span waited for, until the start of the step.
std::vector<PathPart> critical_path(const Timeline& timeline, const StepWork& work) {
  std::vector<PathPart> path;
  for (int at = static_cast<int>(timeline.spans.size()) - 1; at >= 0;) {
    const Span& span = timeline.spans[static_cast<size_t>(at)];
    const Action action = span.instruction.action;
    const bool is_wait = action == Action::kWaitGather || action == Action::kWaitReduce;
    if (!is_wait && span.ms() > 0)
      path.push_back({action, path_name(span.instruction, work), span.begin_ms, span.end_ms});
    at = span.cause;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

void add_span(StepTime& time, const Span& span) {
  const double ms = span.ms();
  UnitTime* unit = span.instruction.unit < 0 ? nullptr : &time.units[static_cast<size_t>(span.instruction.unit)];
  switch (span.instruction.action) {
    case Action::kCompute:
      unit->compute_ms += ms;
      time.compute_ms += ms;
      break;
    case Action::kStartGather:
      unit->gather_ms += ms;
      time.gather_ms += ms;
      break;
    case Action::kStartReduce:
      unit->reduce_ms += ms;
      time.reduce_ms += ms;
      break;
    case Action::kWaitGather:
      unit->exposed_gather_ms += ms;
      time.exposed_gather_ms += ms;
      break;
    case Action::kWaitReduce:
      unit->exposed_reduce_ms += ms;
      time.exposed_reduce_ms += ms;
      break;
    case Action::kOptimize:
      time.optimizer_ms += ms;
      break;
    case Action::kEndBackward:
      time.other_ms += ms;
      break;
    case Action::kReshard:
      break;
  }
}

template <class... Values>
void add_line(std::string& text, const char* format, Values... values) {
  char line[256];
  std::snprintf(line, sizeof(line), format, values...);
  text += line;
}

bool look_alike(const UnitTime& a, const UnitTime& b) {
  const auto near = [](double x, double y) { return std::abs(x - y) < 0.005; };
  return near(a.compute_ms, b.compute_ms) && near(a.gather_ms, b.gather_ms) && near(a.reduce_ms, b.reduce_ms) &&
         near(a.exposed_gather_ms, b.exposed_gather_ms) && near(a.exposed_reduce_ms, b.exposed_reduce_ms);
}

void add_units(std::string& text, const std::vector<UnitTime>& units) {
  add_line(text, "%-28s %10s %10s %10s %14s %14s\n", "unit", "compute", "gather", "reduce", "exposed gather",
           "exposed reduce");
  for (size_t first = 0, next; first < units.size(); first = next) {
    next = first + 1;
    while (next < units.size() && look_alike(units[first], units[next])) ++next;
    std::string label = units[first].unit;
    if (next - first > 1) label += " .. " + units[next - 1].unit;
    const UnitTime& unit = units[first];
    add_line(text, "%-28s %10.2f %10.2f %10.2f %14.2f %14.2f\n", label.substr(0, 60).c_str(), unit.compute_ms,
             unit.gather_ms, unit.reduce_ms, unit.exposed_gather_ms, unit.exposed_reduce_ms);
  }
}

void add_path(std::string& text, const std::vector<PathPart>& path, double step_ms) {
  std::map<std::string, double> shares;
  for (const PathPart& part : path) shares[part.name.substr(0, part.name.find(' '))] += part.end_ms - part.begin_ms;
  text += "critical path:";
  for (const auto& [kind, ms] : shares) add_line(text, " %s %.2f ms (%.1f%%)", kind.c_str(), ms, 100 * ms / step_ms);
  text += "\n";
}

}  // namespace

StepTime predict(const StepWork& work, const StepCosts& costs, const Machine& machine, double flops_per_second) {
  StepTime time;
  for (const UnitWork& unit : work.units) time.units.push_back({unit.name, 0, 0, 0, 0, 0});
  time.timeline = simulate(record_step(work), work, costs, machine);
  time.step_ms = time.timeline.step_ms;
  for (const Span& span : time.timeline.spans) {
    add_span(time, span);
    if (span.instruction.action == Action::kCompute) time.slowdown_ms += span.ms() - costs.compute_ms(span.instruction);
    time.activation_ms += costs.transfer_ms(span.instruction);
  }
  time.critical_path = critical_path(time.timeline, work);
  if (flops_per_second > 0 && time.step_ms > 0) time.mfu = work.model_flops / (1e-3 * time.step_ms * flops_per_second);
  return time;
}

StepTime predict(const StepWork& work, const Hardware& hardware) {
  return predict(work, price(work, hardware), Machine::of(hardware), hardware.flops(work.dtype));
}

std::string to_text(const StepTime& time) {
  std::string text;
  add_line(text, "step %.2f ms: compute %.2f (%.2f of it through transfers beside it), optimizer %.2f, ", time.step_ms,
           time.compute_ms, time.slowdown_ms, time.optimizer_ms);
  add_line(text, "exposed gather %.2f, exposed reduce %.2f, other %.2f\n", time.exposed_gather_ms,
           time.exposed_reduce_ms, time.other_ms);
  if (time.activation_ms > 0)
    add_line(text, "of compute, %.2f ms wait for activations of other ranks\n", time.activation_ms);
  if (time.mfu > 0) add_line(text, "MFU %.2f%%\n", 100 * time.mfu);
  add_units(text, time.units);
  add_path(text, time.critical_path, time.step_ms);
  return text;
}

}  // namespace fsdp::plan::time
