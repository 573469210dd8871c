#include "fsdp/cuda/memory_report.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/StringUtil.h>

#include <map>
#include <mutex>
#include <utility>

#include "fsdp/base/advice.h"
#include "fsdp/base/units.h"

namespace fsdp::cuda {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

struct Reporters {
  std::mutex mutex;
  bool is_attached = false;
  std::map<c10::DeviceIndex, std::function<MemoryCategories()>> of_device;
};

Reporters& reporters() {
  static auto* instance = new Reporters;  // LibTorch's allocator outlives statics
  return *instance;
}

void on_out_of_memory(int64_t device, size_t wanted, size_t, size_t) {
  std::function<MemoryCategories()> categories;
  {
    Reporters& all = reporters();
    const std::lock_guard lock(all.mutex);
    const auto found = all.of_device.find(static_cast<c10::DeviceIndex>(device));
    if (found != all.of_device.end()) categories = found->second;
  }
  if (!categories) return;
  const c10::Device place(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
  give_advice({"out of memory", c10::str("no ", format_bytes(static_cast<int64_t>(wanted)), " left on ", place, "\n",
                                         memory_report(place, categories()))});
}

}  // namespace

DeviceMemory read_device_memory(c10::Device device) {
  const caching::DeviceStats stats = caching::getDeviceStats(device.index());
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  DeviceMemory memory;
  memory.allocated = stats.allocated_bytes[all].current;
  memory.reserved = stats.reserved_bytes[all].current;
  memory.peak_allocated = stats.allocated_bytes[all].peak;
  memory.peak_reserved = stats.reserved_bytes[all].peak;
  memory.retries = stats.num_alloc_retries;
  memory.failures = stats.num_ooms;
  memory.total = static_cast<int64_t>(at::cuda::getDeviceProperties(device.index())->totalGlobalMem);
  return memory;
}

void reset_device_peak(c10::Device device) { caching::resetPeakStats(device.index()); }

std::string memory_report(c10::Device device, const MemoryCategories& categories) {
  const DeviceMemory memory = read_device_memory(device);
  const int64_t ours = categories.params + categories.grads + categories.optimizer + categories.gathered +
                       categories.reduce + categories.idle;
  std::string text = c10::str("memory of ", device, ": ", format_bytes(memory.allocated), " allocated, at most ",
                              format_bytes(memory.peak_allocated), "; ", format_bytes(memory.reserved),
                              " reserved, at most ", format_bytes(memory.peak_reserved), ", of ",
                              format_bytes(memory.total), "; ", memory.retries, " retries\n");
  const std::pair<const char*, int64_t> lines[] = {{"parameters", categories.params},
                                                   {"gradients", categories.grads},
                                                   {"optimizer", categories.optimizer},
                                                   {"gathered weights", categories.gathered},
                                                   {"gradients on their way", categories.reduce},
                                                   {"idle slabs", categories.idle},
                                                   {"activations and others", memory.allocated - ours}};
  for (const auto& [name, bytes] : lines) text += c10::str("  ", name, ": ", format_bytes(bytes), "\n");
  return text;
}

void report_out_of_memory(c10::Device device, std::function<MemoryCategories()> categories) {
  Reporters& all = reporters();
  const std::lock_guard lock(all.mutex);
  all.of_device[device.index()] = std::move(categories);
  if (!std::exchange(all.is_attached, true)) caching::attachOutOfMemoryObserver(&on_out_of_memory);
}

}  // namespace fsdp::cuda
