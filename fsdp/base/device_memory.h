#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace fsdp {

// Memory of a device as LibTorch's allocator knows it. Bytes.
struct DeviceMemory {
  int64_t allocated = 0;  // by tensors, now
  int64_t reserved = 0;   // held from the device, now
  int64_t peak_allocated = 0;
  int64_t peak_reserved = 0;
  int64_t retries = 0;  // how often memory was short and everything idle had to be returned first
  int64_t failures = 0;
  int64_t total = 0;  // the device has
};

// Peaks are those since reset_peak(), counts those since the start. Nothing for the CPU, and for devices whose library
// is not loaded (load_cuda). Local; the host waits for nothing.
std::optional<DeviceMemory> device_memory(c10::Device device);
void reset_peak_memory(c10::Device device);

// What a library for a kind of device registers; it lives until the process ends.
struct DeviceMemorySource {
  DeviceMemory (*read)(c10::Device device);
  void (*reset_peak)(c10::Device device);
};
void register_device_memory(c10::DeviceType type, const DeviceMemorySource* source);

// Of what the library keeps on a device. Bytes of this rank, now.
struct MemoryCategories {
  int64_t params = 0;     // main weights, and copies of them that rest
  int64_t grads = 0;      // reduced
  int64_t optimizer = 0;  // its state; the program fills it in (AdamW::state_bytes)
  int64_t gathered = 0;   // weights of units that are unsharded
  int64_t reduce = 0;     // gradients that are collected or on their way
  int64_t idle = 0;       // held for the two before
};

}  // namespace fsdp
