#pragma once

#include <memory>

#include "fsdp/comm/transport/device_transports.h"

namespace fsdp::cuda {

// c10d's ProcessGroupNCCL, connected at once: one communicator, whose calls are work of the current stream (asyncOp =
// false), so that nothing hops to streams of c10d's and the host waits for nothing. Sums come in NCCL's order: the same
// on all ranks, but not the bits of the host's transports; a reduction leaves its sum in this rank's slice of the
// input. A call that is not complete at the group's deadline ends the process, with a record of the last calls where
// set_nccl_defaults() says so. COLLECTIVE over the group.
// Throws Error(kCommunication) where the GPUs cannot be connected, and Error(kUsage) where NCCL's headers that libfsdp
// was built with are not those of LibTorch.
std::unique_ptr<comm::Transport> make_nccl_transport(const comm::DeviceGroup& group);

}  // namespace fsdp::cuda
