#include "fsdp/base/trace.h"

#include <utility>

namespace fsdp {
namespace {
thread_local std::shared_ptr<TraceSink> t_sink;
}  // namespace

void TraceSink::add(TraceEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
}

std::vector<TraceEvent> TraceSink::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

void TraceSink::clear() {
  const std::lock_guard lock(mutex_);
  events_.clear();
}

TraceCollector::TraceCollector() : sink_(std::make_shared<TraceSink>()), outer_(std::exchange(t_sink, sink_)) {}
TraceCollector::~TraceCollector() { t_sink = std::move(outer_); }

const std::shared_ptr<TraceSink>& current_trace_sink() { return t_sink; }

TraceScope::TraceScope(const char* name, const std::string& unit) : sink_(t_sink.get()), name_(name), unit_(&unit) {
  if (sink_ != nullptr) begin_ = std::chrono::steady_clock::now();
}

TraceScope::~TraceScope() {
  if (sink_ == nullptr) return;
  sink_->add({name_, *unit_, begin_, std::chrono::steady_clock::now(), ""});
}

}  // namespace fsdp
