// Where a rank of a training run computes.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "fsdp/mesh/mesh.h"
#include "train/config.h"

namespace fsdp::train {

// The CPU, or with shard.device = "cuda" the GPU with this rank's number among the ranks of its host; loads the library
// of GPUs then. Local. Throws Error(kUsage) where there are fewer GPUs than ranks, or where the configuration asks for
// what only the CPU can; Error where this build has no such library.
c10::Device choose_device(const Config& config, const World& world);

// "; cuda:0 of 80 GB each"; empty for the CPU.
std::string describe(c10::Device device);

}  // namespace fsdp::train
