#include "train/base/device.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "fsdp/base/device_memory.h"
#include "fsdp/base/error.h"
#include "fsdp/base/load_cuda.h"
#include "fsdp/base/units.h"

namespace fsdp::train {

c10::Device choose_device(const std::string& name, const std::string& option, const World& world) {
  if (name == "cpu") return c10::kCPU;
  if (name != "cuda") throw Error(ErrorCode::kUsage, option + ": got \"" + name + "\", expected cpu or cuda.");
  load_cuda();
  const auto num_gpus = static_cast<int>(at::getNumGPUs());
  if (world.local_rank < num_gpus) {
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(world.local_rank));
    // Else whoever goes back to "the device before" makes a context on GPU 0, on every rank.
    c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
    return device;
  }
  throw Error(ErrorCode::kUsage, option + ": got \"cuda\" for " + std::to_string(world.local_size) +
                                     " rank(s) on this host, which shows " + std::to_string(num_gpus) +
                                     " GPU(s), expected one a rank. Start fewer ranks, or choose cpu.");
}

std::string describe(c10::Device device) {
  const auto memory = device_memory(device);
  return memory ? "; " + device.str() + " of " + format_bytes(memory->total) + " each" : "";
}

}  // namespace fsdp::train
