#pragma once

#include <ATen/core/Generator.h>

#include <memory>

#include "fsdp/parallel/ranks.h"

namespace fsdp::parallel {

// Gives `generator` on every rank the state it has on the axis's first: from then on ranks draw the same numbers, as
// dropout of activations that they all have alike must (between a row layer and the next column layer, say).
// at::detail::getDefaultCPUGenerator() is the one that dropout takes on the CPU. COLLECTIVE over the axis.
void share_random_state(at::Generator generator, const std::shared_ptr<Ranks>& ranks);

}  // namespace fsdp::parallel
