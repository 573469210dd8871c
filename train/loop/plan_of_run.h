// The plan of the run that is about to start, and how it came out.
#pragma once

#include <cstdint>
#include <string>

#include "fsdp/fsdp.h"
#include "plan/report.h"
#include "train/config/config.h"
#include "train/model/model_choice.h"

namespace fsdp::train {

// Of the ranks, the transport and the copies of weights that this world has. Local.
plan::Report plan_run(const Config& config, const ModelChoice& choice, const World& world);

// "plan: a rank holds ... in buffers, ... of activations: 1.20 GiB at most, ...".
std::string describe_plan(const plan::Report& plan);

// What this rank holds after some steps, beside what was planned, by part. Local.
std::string compare_with_plan(const plan::Report& plan, const Unit& root, int64_t optimizer_bytes);

}  // namespace fsdp::train
