#pragma once

#include <memory>

#include "fsdp/checkpoint/state/state.h"
#include "fsdp/mesh/mesh.h"

namespace fsdp::checkpoint {

// LibTorch's default generators of random numbers, of the CPU and of this rank's CUDA device. At the number of ranks
// that saved, and where all ranks were alike, each goes on exactly; otherwise every rank gets a stream of its own,
// derived from a saved one.
std::unique_ptr<Stateful> make_random_state(const World& world);

}  // namespace fsdp::checkpoint
