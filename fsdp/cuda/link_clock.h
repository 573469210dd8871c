// A network link that exists only in time, kept on a GPU: launches for fabric_transport.cpp. No LibTorch: nvcc reads
// this.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fsdp::cuda {

// All on the device; times are in ns of its global timer.
struct LinkClock {
  unsigned long long* busy_until;    // of the link, which several streams share; starts as 0
  unsigned long long* transfer_end;  // of the transfer that a stream carries out now
};

// Reserves the link for `duration_ns`, from when it is free or from now.
cudaError_t launch_begin_transfer(const LinkClock& clock, uint64_t duration_ns, cudaStream_t stream);

// Keeps `blocks` thread blocks of the device busy until the end of the transfer that was begun on this stream.
cudaError_t launch_end_transfer(const LinkClock& clock, int blocks, cudaStream_t stream);

}  // namespace fsdp::cuda
