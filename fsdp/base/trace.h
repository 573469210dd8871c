#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace fsdp {

// One thing the library did: an entry of docs/one_step.md's table. Names are those of docs/glossary.md.
struct TraceEvent {
  std::string name;  // "unshard", "gather", "wait gather", "reshard", "reduce", "wait reduce", ...
  std::string unit;  // dotted name of the unit, "" where there is none
  std::chrono::steady_clock::time_point begin;
  std::chrono::steady_clock::time_point end;
};

// Collects the events of the thread that made it, from construction to destruction. Local; nestable (the innermost
// collector receives the events).
class TraceCollector {
 public:
  TraceCollector();
  ~TraceCollector();
  TraceCollector(const TraceCollector&) = delete;
  TraceCollector& operator=(const TraceCollector&) = delete;

  const std::vector<TraceEvent>& events() const { return events_; }
  void clear() { events_.clear(); }

 private:
  friend class TraceScope;
  std::vector<TraceEvent> events_;
  TraceCollector* outer_;
};

// Marks a range as an event of the innermost collector of this thread. Costs one thread-local read when nobody
// collects.
class TraceScope {
 public:
  TraceScope(const char* name, const std::string& unit);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  TraceCollector* collector_;
  const char* name_;
  const std::string* unit_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace fsdp
