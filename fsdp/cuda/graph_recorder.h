#pragma once

#include <memory>

#include "fsdp/graph/work_recorder.h"

namespace fsdp::cuda {

// Records CUDA graphs from a stream of its own, with a memory pool of its own.
std::unique_ptr<WorkRecorder> make_graph_recorder(c10::Device device);

}  // namespace fsdp::cuda
