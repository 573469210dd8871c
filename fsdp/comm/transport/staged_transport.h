#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "fsdp/comm/transport/transport.h"

namespace fsdp::comm {

// Carries tensors of `device` over a transport of the host, with its sums bit by bit, through copies in host memory
// (pinned for CUDA). For ranks that share one GPU, which NCCL refuses, and for devices that have no transport of their
// own. Correct, not fast: every call and every wait blocks the host until the current stream is through.
std::unique_ptr<Transport> make_staged_transport(std::shared_ptr<Transport> host, c10::Device device);

}  // namespace fsdp::comm
