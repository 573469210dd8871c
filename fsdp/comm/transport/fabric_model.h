#pragma once

#include <chrono>
#include <cstdint>

namespace fsdp::comm {

// A network that is not there: a transfer holds the rank's one link to it for `latency` plus the time that its bytes
// take, and transfers come one after the other, gathers and reductions alike.
struct FabricModel {
  std::chrono::nanoseconds latency = std::chrono::microseconds(20);
  double bytes_per_second = 50e9;  // what one rank receives; above 0
  int blocks = 8;                  // on a GPU: thread blocks that a transfer keeps busy meanwhile, like NCCL's channels

  // For `bytes` that this rank receives.
  std::chrono::nanoseconds time_for(int64_t bytes) const {
    return latency +
           std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(bytes) / bytes_per_second * 1e9));
  }
};

}  // namespace fsdp::comm
