#include "train/training_device.h"

#include <ATen/Context.h>

#include "fsdp/base/device_memory.h"
#include "fsdp/base/error.h"
#include "fsdp/base/load_cuda.h"
#include "fsdp/base/units.h"
#include "train/graphed_blocks.h"

namespace fsdp::train {
namespace {

void check_features(const Config& config) {
  if (config.sample.every_steps == 0) return;
  throw Error(ErrorCode::kUsage, "[train] sample.every_steps: got " + std::to_string(config.sample.every_steps) +
                                     " with shard.device = \"cuda\"; texts are generated on the CPU only. Set it to 0, "
                                     "and use `fsdp generate` on the checkpoint.");
}

}  // namespace

c10::Device choose_device(const Config& config, const World& world) {
  check_graphs(config);
  if (config.shard.device == "cpu") return c10::kCPU;
  check_features(config);
  load_cuda();
  const auto num_gpus = static_cast<int>(at::getNumGPUs());
  if (world.local_rank < num_gpus) return {c10::kCUDA, static_cast<c10::DeviceIndex>(world.local_rank)};
  throw Error(ErrorCode::kUsage, "[train] shard.device: got \"cuda\" for " + std::to_string(world.local_size) +
                                     " rank(s) on this host, which shows " + std::to_string(num_gpus) +
                                     " GPU(s), expected one a rank. Start fewer ranks, or set shard.device = \"cpu\".");
}

std::string describe(c10::Device device) {
  const auto memory = device_memory(device);
  return memory ? "; " + device.str() + " of " + format_bytes(memory->total) + " each" : "";
}

}  // namespace fsdp::train
