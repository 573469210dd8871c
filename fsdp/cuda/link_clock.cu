#include "fsdp/cuda/link_clock.h"

namespace fsdp::cuda {
namespace {

constexpr int kThreads = 256;         // of a block, like one of NCCL's channels
constexpr unsigned kLookEvery = 200;  // ns

__device__ unsigned long long now_ns() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

__global__ void begin_transfer(LinkClock clock, unsigned long long duration) {
  unsigned long long seen = *clock.busy_until;
  while (true) {
    const unsigned long long now = now_ns();
    const unsigned long long end = (seen > now ? seen : now) + duration;
    const unsigned long long before = atomicCAS(clock.busy_until, seen, end);
    if (before == seen) {
      *clock.transfer_end = end;
      return;
    }
    seen = before;
  }
}

__global__ void end_transfer(LinkClock clock) {
  const unsigned long long end = *clock.transfer_end;
  while (now_ns() < end) __nanosleep(kLookEvery);
}

}  // namespace

cudaError_t launch_begin_transfer(const LinkClock& clock, uint64_t duration_ns, cudaStream_t stream) {
  begin_transfer<<<1, 1, 0, stream>>>(clock, duration_ns);
  return cudaGetLastError();
}

cudaError_t launch_end_transfer(const LinkClock& clock, int blocks, cudaStream_t stream) {
  end_transfer<<<blocks, kThreads, 0, stream>>>(clock);
  return cudaGetLastError();
}

}  // namespace fsdp::cuda
