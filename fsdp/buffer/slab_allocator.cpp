#include "fsdp/buffer/slab_allocator.h"

#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/units.h"

namespace fsdp {

c10::DataPtr SlabAllocator::take(int64_t bytes) {
  auto& slabs = idle_[bytes];
  if (!slabs.empty()) {
    c10::DataPtr slab = std::move(slabs.back());
    slabs.pop_back();
    idle_bytes_ -= bytes;
    return slab;
  }
  ++num_allocations_;
  try {
    return c10::GetAllocator(device_.type())->allocate(static_cast<size_t>(bytes));
  } catch (const std::exception& error) {
    trim();
    FSDP_THROW(kMemory, "[memory] no ", format_bytes(bytes), " for gathered weights or gradients: ", error.what(),
               ". Shard smaller units, or use more ranks.");
  }
}

void SlabAllocator::give_back(c10::DataPtr slab, int64_t bytes) {
  idle_[bytes].push_back(std::move(slab));
  idle_bytes_ += bytes;
}

void SlabAllocator::trim() {
  idle_.clear();
  idle_bytes_ = 0;
}

}  // namespace fsdp
