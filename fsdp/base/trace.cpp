#include "fsdp/base/trace.h"

namespace fsdp {
namespace {
thread_local TraceCollector* t_collector = nullptr;
}  // namespace

TraceCollector::TraceCollector() : outer_(t_collector) { t_collector = this; }
TraceCollector::~TraceCollector() { t_collector = outer_; }

TraceScope::TraceScope(const char* name, const std::string& unit)
    : collector_(t_collector), name_(name), unit_(&unit), begin_() {
  if (collector_ != nullptr) begin_ = std::chrono::steady_clock::now();
}

TraceScope::~TraceScope() {
  if (collector_ == nullptr) return;
  collector_->events_.push_back({name_, *unit_, begin_, std::chrono::steady_clock::now()});
}

}  // namespace fsdp
