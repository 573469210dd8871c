#include "fsdp/base/trace.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace fsdp {
namespace {
thread_local std::shared_ptr<TraceSink> t_sink;
std::atomic<const RangeViewer*> range_viewer{nullptr};
}  // namespace

void TraceSink::add(TraceEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
}

// Threads that ended something at about the same time may have added it in another order.
std::vector<TraceEvent> TraceSink::events() const {
  std::vector<TraceEvent> events;
  {
    const std::lock_guard lock(mutex_);
    events = events_;
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const TraceEvent& a, const TraceEvent& b) { return a.end < b.end; });
  return events;
}

void TraceSink::clear() {
  const std::lock_guard lock(mutex_);
  events_.clear();
}

TraceCollector::TraceCollector() : sink_(std::make_shared<TraceSink>()), outer_(std::exchange(t_sink, sink_)) {}
TraceCollector::~TraceCollector() { t_sink = std::move(outer_); }

const std::shared_ptr<TraceSink>& current_trace_sink() { return t_sink; }

TraceAdoption::TraceAdoption(std::shared_ptr<TraceSink> sink) : adopts_(sink != nullptr) {
  if (adopts_) outer_ = std::exchange(t_sink, std::move(sink));
}

TraceAdoption::~TraceAdoption() {
  if (adopts_) t_sink = std::move(outer_);
}

void set_range_viewer(const RangeViewer* viewer) { range_viewer.store(viewer, std::memory_order_release); }

uint64_t show_range(const char* name, const std::string& unit) {
  const RangeViewer* viewer = range_viewer.load(std::memory_order_acquire);
  return viewer != nullptr ? viewer->begin(name, unit) : 0;
}

void hide_range(uint64_t range) {
  if (range == 0) return;
  const RangeViewer* viewer = range_viewer.load(std::memory_order_acquire);
  if (viewer != nullptr) viewer->end(range);
}

TraceScope::TraceScope(const char* name, const std::string& unit)
    : sink_(t_sink.get()), shown_(show_range(name, unit)), name_(name), unit_(&unit) {
  if (sink_ != nullptr) begin_ = std::chrono::steady_clock::now();
}

TraceScope::~TraceScope() {
  hide_range(shown_);
  if (sink_ == nullptr) return;
  sink_->add({name_, *unit_, begin_, std::chrono::steady_clock::now(), ""});
}

}  // namespace fsdp
