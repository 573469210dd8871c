#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>

#include "fsdp/base/device_memory.h"

namespace fsdp::cuda {

// Of LibTorch's caching allocator: what register_device_memory() is given.
DeviceMemory read_device_memory(c10::Device device);
void reset_device_peak(c10::Device device);

// Memory of a GPU by category, as a table of text: what the library holds (Unit::memory()), and the rest, which is
// activations and what the program keeps itself. Local; the host waits for nothing.
std::string memory_report(c10::Device device, const MemoryCategories& categories);

// From now on, memory that `device` lacks makes an Advice with the subject "out of memory" and such a report, on the
// thread that asked for it and before it gets LibTorch's error. `categories` is called then. A later call for the same
// device replaces it; an empty function ends it.
void report_out_of_memory(c10::Device device, std::function<MemoryCategories()> categories);

}  // namespace fsdp::cuda
