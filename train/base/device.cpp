#include "train/base/device.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>

#include "fsdp/base/device_memory.h"
#include "fsdp/base/error.h"
#include "fsdp/base/load_cuda.h"
#include "fsdp/base/units.h"

namespace fsdp::train {
namespace {

// What fsdp::init() takes it from, too.
std::string transport_of_devices() {
  const char* value = std::getenv("FSDP_DEVICE_TRANSPORT");
  return value == nullptr ? "" : value;
}

}  // namespace

bool has_messages(const std::string& device) { return device == "cpu" || transport_of_devices() == "host"; }

c10::Device choose_device(const std::string& name, const std::string& option, const World& world) {
  if (name == "cpu") return c10::kCPU;
  if (name != "cuda") throw Error(ErrorCode::kUsage, option + ": got \"" + name + "\", expected cpu or cuda.");
  load_cuda();
  const auto num_gpus = static_cast<int>(at::getNumGPUs());
  // Ranks that talk through the host may share a GPU, which NCCL's may not.
  const bool may_share = num_gpus > 0 && transport_of_devices() == "host";
  if (world.local_rank < num_gpus || may_share) {
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(world.local_rank % num_gpus));
    // Else whoever goes back to "the device before" makes a context on GPU 0, on every rank.
    c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
    return device;
  }
  throw Error(ErrorCode::kUsage,
              option + ": got \"cuda\" for " + std::to_string(world.local_size) +
                  " rank(s) on this host, which shows " + std::to_string(num_gpus) +
                  " GPU(s), expected one a rank. Start fewer ranks, choose cpu, or set " +
                  "FSDP_DEVICE_TRANSPORT=host, with which ranks share GPUs and talk through the host.");
}

std::string describe(c10::Device device) {
  const auto memory = device_memory(device);
  return memory ? "; " + device.str() + " of " + format_bytes(memory->total) + " each" : "";
}

}  // namespace fsdp::train
