#pragma once

#include "fsdp/base/trace.h"

namespace fsdp::cuda {

// Shows the library's ranges, under the names of docs/glossary.md ("gather layers.3"), to NVIDIA's profilers (NVTX,
// domain "fsdp"). Costs next to nothing while none is attached.
const RangeViewer& nvtx_ranges();

}  // namespace fsdp::cuda
