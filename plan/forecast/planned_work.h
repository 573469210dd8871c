#pragma once

#include <optional>
#include <string>

#include "plan/model.h"
#include "plan/setup.h"
#include "plan/time/hardware.h"
#include "plan/time/step_work.h"
#include "plan/traffic.h"

namespace fsdp::plan {

// A step of a rank at `place` along `pp` as the simulation of time wants it: what it computes from the decoder's
// configuration; what is gathered, reduced and optimised from the very buffers that plan_units() finds, padding
// included. At most `most_microbatches` of its microbatches. Frozen parameters are counted as if their gradients were
// computed, and not reduced. Throws std::invalid_argument where the model is no decoder.
time::StepWork planned_work(const PlannedModel& model, const Setup& setup, const Network& network,
                            int64_t most_microbatches, int64_t place = 0);

// Of weights and activations.
time::Dtype dtype_of_products(const Setup& setup);

// `hardware` with the links of a node that are there: its network's bandwidth is that of a rank with one for itself.
time::Hardware with_rails(const time::Hardware& hardware, const Setup& setup, const Network& network);

// What a step of the setup is predicted for where nobody says so: "h100-sxm" with GPUs, else "cpu-core".
time::Hardware usual_hardware(const Setup& setup);

// Why there is no prediction, in one sentence that says what would be legal; none if there is one.
std::optional<std::string> why_no_forecast(const PlannedModel& model, const Setup& setup, const Network& network,
                                           const time::Hardware& hardware);

}  // namespace fsdp::plan
