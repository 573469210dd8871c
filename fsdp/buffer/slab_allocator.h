#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace fsdp {

// Memory for buffers that come and go every step: gathered weights, gradients on their way. Gives back-to-back users of
// one size the same slabs again, so that a steady state neither allocates nor touches fresh pages. Keeps every slab,
// that is, as many of a size as were ever in use together, until trim(). Not thread-safe: it belongs to a Context.
// After: the rotating double buffers of Megatron-FSDP and veScale-FSDP.
class SlabAllocator {
 public:
  explicit SlabAllocator(c10::Device device) : device_(device) {}

  // At least `bytes`, 64-byte aligned; contents are left over from the last user. Throws Error(kMemory).
  c10::DataPtr take(int64_t bytes);
  void give_back(c10::DataPtr slab, int64_t bytes);

  // Slabs taken from the system so far / bytes that lie idle.
  int64_t num_allocations() const { return num_allocations_; }
  int64_t idle_bytes() const { return idle_bytes_; }
  // Returns idle slabs to the system.
  void trim();

 private:
  c10::Device device_;
  std::unordered_map<int64_t, std::vector<c10::DataPtr>> idle_;
  int64_t num_allocations_ = 0;
  int64_t idle_bytes_ = 0;
};

}  // namespace fsdp
