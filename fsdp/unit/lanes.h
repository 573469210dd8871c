#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "fsdp/comm/lane.h"
#include "fsdp/mesh/mesh.h"

namespace fsdp {

enum class LaneUse { kGathers, kReductions, kBoth };

// Where gathers and reductions wait. On the CPU a thread; null where there is nobody to wait for, or no core to spare:
// then jobs are carried out by who waits for them. On a device a stream, of high priority where computation waits for
// it.
std::shared_ptr<comm::Lane> make_lane(const World& world, c10::Device device, LaneUse use);

}  // namespace fsdp
