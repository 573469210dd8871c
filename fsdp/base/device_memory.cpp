#include "fsdp/base/device_memory.h"

#include <array>
#include <atomic>

namespace fsdp {
namespace {

std::atomic<const DeviceMemorySource*>& memory_source(c10::DeviceType type) {
  static std::array<std::atomic<const DeviceMemorySource*>,
                    static_cast<size_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES)>
      sources{};
  return sources.at(static_cast<size_t>(type));
}

}  // namespace

void register_device_memory(c10::DeviceType type, const DeviceMemorySource* source) { memory_source(type) = source; }

std::optional<DeviceMemory> device_memory(c10::Device device) {
  const DeviceMemorySource* source = memory_source(device.type());
  return source == nullptr ? std::nullopt : std::optional(source->read(device));
}

void reset_peak_memory(c10::Device device) {
  const DeviceMemorySource* source = memory_source(device.type());
  if (source != nullptr) source->reset_peak(device);
}

}  // namespace fsdp
