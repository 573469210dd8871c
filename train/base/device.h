// Where a rank computes.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "fsdp/mesh/mesh.h"

namespace fsdp::train {

// For "cpu" the CPU, for "cuda" the GPU with this rank's number among the ranks of its host; loads the library of GPUs
// then. Local. Throws Error(kUsage) in the name of `option`, as in "[train] shard.device", for other names and where
// there are fewer GPUs than ranks; Error where this build has no such library.
// Ranks that talk through the host (FSDP_DEVICE_TRANSPORT=host) may share GPUs.
c10::Device choose_device(const std::string& name, const std::string& option, const World& world);

// "; cuda:0 of 80 GB each"; empty for the CPU.
std::string describe(c10::Device device);

// Whether ranks that compute on `device`, cpu or cuda, can send each other messages, as stages and rings do. Over NCCL
// they cannot in this version: both ends of a pair would have to enqueue them in one order.
bool has_messages(const std::string& device);

}  // namespace fsdp::train
