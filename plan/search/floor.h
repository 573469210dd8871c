#pragma once

#include <string_view>

#include "plan/report.h"

namespace fsdp::plan {

// What one rank can do at most. Defaults: H100 SXM, bf16 without sparsity (NVIDIA H100 datasheet: 989.4 TFLOP/s, NVLink
// 900 GB/s in both directions together), and one 400 Gb/s link per GPU to other nodes (DGX H100: ConnectX-7).
struct Machine {
  double flops_per_s = 989.4e12;
  double node_bytes_per_s = 450e9;
  double network_bytes_per_s = 50e9;
};

enum class Bound { kCompute, kNodeLinks, kNetwork };
std::string_view name(Bound bound);

// Seconds below which no step of the setup can be: each resource busy all the time and perfectly overlapped. Not a
// prediction of time.
struct StepFloor {
  double compute = 0;
  double node_links = 0;
  double network = 0;  // slimming included

  double seconds() const;
  double communication() const { return node_links + network; }
  Bound bound() const;
};

// FLOPs of one token that are done twice because activations are computed again.
double recomputed_flops_per_token(const models::DecoderConfig& config, const Work& work);

StepFloor step_floor(const PlannedModel& model, const Report& report, const Machine& machine);

}  // namespace fsdp::plan
