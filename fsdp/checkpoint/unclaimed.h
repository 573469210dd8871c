#pragma once

#include <set>
#include <string>

#include "fsdp/mesh/mesh.h"

namespace fsdp::checkpoint {

// What no rank asked for: the names that every rank gives. Ranks with other stages of a pipeline ask for other tensors.
// COLLECTIVE over the world.
std::set<std::string> unclaimed(const World& world, const std::set<std::string>& not_asked_here);

}  // namespace fsdp::checkpoint
