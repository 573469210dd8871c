#pragma once

#include <memory>

#include "fsdp/comm/transport/fabric_model.h"
#include "fsdp/comm/transport/transport.h"

namespace fsdp::comm {

// The link of one rank to a modelled network, shared by its transports; thread-safe.
class FabricLink;
std::shared_ptr<FabricLink> make_fabric_link(const FabricModel& model);

// Rank 0 of `size` ranks of which the others do not exist: every transfer takes as long as over a network of this
// model, on a clock, and its result is that of ranks that all hold what this one does. Reductions compute in their
// input. For tensors of the CPU; that of a GPU, fsdp/cuda/fabric_transport.h, keeps its stream busy.
std::unique_ptr<Transport> make_fabric_transport(std::shared_ptr<FabricLink> link, int size);

}  // namespace fsdp::comm
