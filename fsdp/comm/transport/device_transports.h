#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>

#include "fsdp/comm/transport/fabric_model.h"
#include "fsdp/comm/transport/transport.h"

namespace fsdp::comm {

// A group of ranks that is to be connected for tensors of a device.
struct DeviceGroup {
  c10::Device device;
  int rank = 0;  // within the group
  int size = 1;
  std::string name;                       // the same on its ranks; no other group of the job has it
  c10::intrusive_ptr<c10d::Store> store;  // keys of the group's own; null for a fabric
  std::chrono::milliseconds deadline{0};  // of every call
  bool is_urgent = false;                 // carries gathers, which computation waits for
};

// What the library of a kind of device brings for communication: the core reaches it through this table.
struct DeviceTransports {
  // Over the network of the devices. COLLECTIVE. Throws Error.
  std::unique_ptr<Transport> (*connect)(const DeviceGroup& group);
  // Rank 0 of ranks that do not exist: fabric_transport.h.
  std::unique_ptr<Transport> (*model)(const DeviceGroup& group, const FabricModel& fabric);
};

// One for each kind of device; `transports` lives until the process ends. Thread-safe.
void register_device_transports(c10::DeviceType type, const DeviceTransports* transports);
// Null: none is registered.
const DeviceTransports* find_device_transports(c10::DeviceType type);

}  // namespace fsdp::comm
