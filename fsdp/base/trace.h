#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace fsdp {

// One thing the library did: an entry of docs/one_step.md's table. Names are those of docs/glossary.md.
struct TraceEvent {
  std::string name;  // "unshard", "gather", "wait gather", "reshard", "reduce", "wait reduce", "forward", "backward"
  std::string unit;  // dotted name of the unit, "" where there is none
  std::chrono::steady_clock::time_point begin;
  std::chrono::steady_clock::time_point end;
  std::string thread;  // "" for the program's own, else "gather thread", "reduce thread", "comm thread"
};

// Where the events of one collector go. Thread-safe: threads that work for the program's thread add to it too, and may
// outlive the collector.
class TraceSink {
 public:
  void add(TraceEvent event);
  std::vector<TraceEvent> events() const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::vector<TraceEvent> events_;
};

// Collects the events of the thread that made it, and of the communication threads that work for it, from construction
// to destruction. Local; nestable (the innermost collector receives the events).
class TraceCollector {
 public:
  TraceCollector();
  ~TraceCollector();
  TraceCollector(const TraceCollector&) = delete;
  TraceCollector& operator=(const TraceCollector&) = delete;

  // In the order in which they ended.
  std::vector<TraceEvent> events() const { return sink_->events(); }
  void clear() { sink_->clear(); }

 private:
  std::shared_ptr<TraceSink> sink_;
  std::shared_ptr<TraceSink> outer_;
};

// The sink of this thread's innermost collector; null when nobody collects.
const std::shared_ptr<TraceSink>& current_trace_sink();

// Marks a range as an event of the innermost collector of this thread. Costs one thread-local read when nobody
// collects.
class TraceScope {
 public:
  TraceScope(const char* name, const std::string& unit);
  TraceScope(const char* name, std::string&& unit) = delete;  // the name of the unit must outlive the scope
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  TraceSink* sink_;
  const char* name_;
  const std::string* unit_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace fsdp
