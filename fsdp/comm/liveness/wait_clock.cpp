#include "fsdp/comm/liveness/wait_clock.h"

namespace fsdp::comm {
namespace {

thread_local std::chrono::nanoseconds waited{0};
thread_local int depth = 0;

}  // namespace

std::chrono::nanoseconds waited_by_this_thread() { return waited; }

WaitClock::WaitClock() : begin_(std::chrono::steady_clock::now()) { ++depth; }

WaitClock::~WaitClock() {
  if (--depth == 0) waited += std::chrono::steady_clock::now() - begin_;
}

}  // namespace fsdp::comm
