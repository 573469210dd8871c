#pragma once

#include <chrono>
#include <cstdint>
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

// Makes `sink`, if there is one, that of this thread until it is destroyed: for threads that do a part of the program's
// own work, such as autograd's.
class TraceAdoption {
 public:
  explicit TraceAdoption(std::shared_ptr<TraceSink> sink);
  ~TraceAdoption();
  TraceAdoption(const TraceAdoption&) = delete;
  TraceAdoption& operator=(const TraceAdoption&) = delete;

 private:
  bool adopts_;
  std::shared_ptr<TraceSink> outer_;
};

// A profiler outside of this process that shows ranges while they are open (NVTX, with fsdp::cuda). `begin` returns a
// number that is not 0; `end` may be called on another thread.
struct RangeViewer {
  uint64_t (*begin)(const char* name, const std::string& unit);
  void (*end)(uint64_t range);
};
// Process-wide; null: none. The viewer must live until the process ends. Thread-safe.
void set_range_viewer(const RangeViewer* viewer);
// What show_range() returned goes to hide_range(); 0 where nobody looks.
uint64_t show_range(const char* name, const std::string& unit);
void hide_range(uint64_t range);

// Marks a range as an event of the innermost collector of this thread, and shows it. Costs one thread-local read and
// one load when nobody collects or looks.
class TraceScope {
 public:
  TraceScope(const char* name, const std::string& unit);
  TraceScope(const char* name, std::string&& unit) = delete;  // the name of the unit must outlive the scope
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  TraceSink* sink_;
  uint64_t shown_;
  const char* name_;
  const std::string* unit_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace fsdp
