// What the core gets when this library is loaded.
#include "fsdp/base/device_memory.h"
#include "fsdp/base/trace.h"
#include "fsdp/comm/transport/device_transports.h"
#include "fsdp/cuda/fabric_transport.h"
#include "fsdp/cuda/graph_recorder.h"
#include "fsdp/cuda/memory_report.h"
#include "fsdp/cuda/nccl_transport.h"
#include "fsdp/cuda/ranges.h"
#include "fsdp/graph/work_recorder.h"

namespace fsdp::cuda {
namespace {

constexpr comm::DeviceTransports kTransports{&make_nccl_transport, &make_fabric_transport};
constexpr DeviceMemorySource kMemory{&read_device_memory, &reset_device_peak};

const bool is_registered = [] {
  comm::register_device_transports(c10::kCUDA, &kTransports);
  register_device_memory(c10::kCUDA, &kMemory);
  set_work_recorder(c10::kCUDA, &make_graph_recorder);
  set_range_viewer(&nvtx_ranges());
  return true;
}();

}  // namespace
}  // namespace fsdp::cuda
