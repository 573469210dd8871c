#pragma once

#include <atomic>
#include <string>

namespace fsdp {

// Faults on request: what a test battery uses to kill, stop or confuse a real program at a named place. The variable
// FSDP_FAULT holds `<action>@<point>[:rank=R][:hit=N]`, several separated by ';' (docs/reliability.md lists both).
// Without it a fault point costs one relaxed load.
namespace faults {

extern std::atomic<bool> armed;

// Reads FSDP_FAULT for this rank. Called by init(); again after a fork. Throws Error(kUsage) for a malformed one.
void arm(int rank);

// What the caller shall do itself; all other actions happen inside.
struct Order {
  bool inject = false;   // spoil the value that the point stands for
  int error_number = 0;  // fail as if the system had said so
};
Order reach(const char* point);

}  // namespace faults

// Marks a place by name. Thread-safe.
inline faults::Order fault_point(const char* point) {
  return faults::armed.load(std::memory_order_relaxed) ? faults::reach(point) : faults::Order{};
}

}  // namespace fsdp
