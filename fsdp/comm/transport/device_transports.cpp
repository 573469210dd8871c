#include "fsdp/comm/transport/device_transports.h"

#include <array>
#include <atomic>

namespace fsdp::comm {
namespace {

using Registry = std::array<std::atomic<const DeviceTransports*>,
                            static_cast<size_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES)>;

std::atomic<const DeviceTransports*>& place_of(c10::DeviceType type) {
  static Registry registry{};
  return registry.at(static_cast<size_t>(type));
}

}  // namespace

void register_device_transports(c10::DeviceType type, const DeviceTransports* transports) {
  place_of(type) = transports;
}

const DeviceTransports* find_device_transports(c10::DeviceType type) { return place_of(type); }

}  // namespace fsdp::comm
