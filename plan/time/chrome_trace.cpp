#include "plan/time/chrome_trace.h"

#include <nlohmann/json.hpp>

namespace fsdp::plan::time {
namespace {

using nlohmann::json;

const char* thread_name(Stream stream) {
  switch (stream) {
    case Stream::kCompute:
      return "program";
    case Stream::kGathers:
      return "gather thread";
    case Stream::kReductions:
      return "reduce thread";
  }
  return "";
}

json thread_event(Stream stream) {
  return {{"ph", "M"},
          {"pid", 0},
          {"tid", static_cast<int>(stream)},
          {"name", "thread_name"},
          {"args", {{"name", thread_name(stream)}}}};
}

// A wait for a gather is "wait gather layers.0", the gather itself "gather layers.0".
std::string event_name(const Span& span, const StepWork& work) {
  if (span.stream == Stream::kCompute) return describe(span.instruction, work);
  const bool is_gather = span.instruction.action == Action::kStartGather;
  return (is_gather ? "gather " : "reduce ") + work.units[static_cast<size_t>(span.instruction.unit)].name;
}

}  // namespace

std::string to_chrome_trace(const Timeline& timeline, const StepWork& work) {
  json events = json::array();
  for (const Stream stream : {Stream::kCompute, Stream::kGathers, Stream::kReductions})
    events.push_back(thread_event(stream));
  for (const Span& span : timeline.spans) {
    events.push_back({{"ph", "X"},
                      {"pid", 0},
                      {"tid", static_cast<int>(span.stream)},
                      {"name", event_name(span, work)},
                      {"ts", 1e3 * span.begin_ms},
                      {"dur", 1e3 * span.ms()},
                      {"args", {{"microbatch", span.instruction.microbatch}}}});
  }
  const json trace = {{"displayTimeUnit", "ms"}, {"traceEvents", events}};
  return trace.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace fsdp::plan::time
