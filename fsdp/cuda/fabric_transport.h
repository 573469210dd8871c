#pragma once

#include <memory>

#include "fsdp/comm/transport/device_transports.h"

namespace fsdp::cuda {

// The GPU's twin of comm/fabric_transport.h: rank 0 of ranks that do not exist. Every transfer keeps its stream, and
// FabricModel::blocks thread blocks, busy until the modelled network would be done with it; transfers of one device
// share one link. Results are those of ranks that all hold what this one does, and are written to memory as over a
// network. Local; returns at once.
std::unique_ptr<comm::Transport> make_fabric_transport(const comm::DeviceGroup& group, const comm::FabricModel& model);

}  // namespace fsdp::cuda
