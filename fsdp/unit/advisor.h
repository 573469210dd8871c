#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "fsdp/base/advice.h"

namespace fsdp {

class Context;

// What advice about a model's units is made from; sums over the groups of each.
struct UnitFigures {
  std::string name;
  int64_t gathered_bytes = 0;
  int64_t padding_bytes = 0;  // part of the above
  double waited_ms = 0;       // for its gathers and reductions
};

// Memory of this machine, or of the cgroup that is tighter.
struct MemoryFigures {
  int64_t used = 0;
  int64_t limit = 0;  // 0: unknown
};
MemoryFigures measure_memory();

// Bytes that a change of options would save on this rank, most first.
struct MemoryKnob {
  std::string change;
  int64_t saved_bytes = 0;
};

// The rules; each returns an empty text where there is nothing to say. `world` counts ranks.
std::string advise_on_size(const std::vector<UnitFigures>& units, int world);
std::string advise_on_padding(const std::vector<UnitFigures>& units);
std::string advise_on_latency(const std::vector<UnitFigures>& units, double exposed_share);
std::string advise_on_exposure(const std::vector<UnitFigures>& units, double exposed_share);
std::string advise_on_memory(const MemoryFigures& memory, std::vector<MemoryKnob> knobs);
// `setting`: CUDA_DEVICE_MAX_CONNECTIONS, may be null.
std::string advise_on_connections(const char* setting, bool uses_cuda);

// Watches the steps of one Context and gives advice, once for each subject (seed row D7). Local.
class Advisor {
 public:
  // The end of a backward that reduced gradients.
  void after_step(const Context& context);
  // A gradient of `parameter` arrived that has a graph of its own, which it loses.
  void after_recorded_gradient(const std::string& parameter);

 private:
  void say(const std::string& subject, const std::string& text);
  double exposed_share(const Context& context) const;

  int64_t steps_ = 0;
  std::chrono::steady_clock::time_point first_step_end_;
  double waited_before_ms_ = 0;  // until then
  std::set<std::string> said_;
};

}  // namespace fsdp
