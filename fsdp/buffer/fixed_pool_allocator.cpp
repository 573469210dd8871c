#include <algorithm>
#include <map>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/units.h"
#include "fsdp/buffer/buffer_allocator.h"

namespace fsdp {
namespace {

// Pieces of one arena: first fit, neighbours joined again when they come back.
class FixedPoolAllocator : public BufferAllocator {
 public:
  FixedPoolAllocator(c10::Device device, int64_t pool_bytes) : BufferAllocator(device), pool_bytes_(pool_bytes) {}

  c10::DataPtr take(int64_t bytes) override {
    if (!arena_) {
      arena_ = take_from_system(pool_bytes_);
      released_ = ready_;
      free_[0] = pool_bytes_;
    }
    ready_ = released_;
    const int64_t size = aligned_size(bytes);
    const auto hole = std::find_if(free_.begin(), free_.end(), [&](const auto& item) { return item.second >= size; });
    if (hole == free_.end()) refuse(bytes);
    const auto [offset, hole_size] = *hole;
    free_.erase(hole);
    if (hole_size > size) free_[offset + size] = hole_size - size;
    in_use_[offset] = size;
    return {static_cast<char*>(arena_.get()) + offset, device_};
  }

  void take_back(c10::DataPtr memory, int64_t, const StreamPoint&) override {
    const int64_t offset = static_cast<const char*>(memory.get()) - static_cast<const char*>(arena_.get());
    const auto piece = in_use_.find(offset);
    FSDP_ASSERT(piece != in_use_.end(), "memory that is not of this pool");
    released_ = StreamPoint::now(device_);
    auto hole = free_.emplace(offset, piece->second).first;
    in_use_.erase(piece);
    const auto next = std::next(hole);
    if (next != free_.end() && hole->first + hole->second == next->first) {
      hole->second += next->second;
      free_.erase(next);
    }
    if (hole == free_.begin()) return;
    const auto previous = std::prev(hole);
    if (previous->first + previous->second == hole->first) {
      previous->second += hole->second;
      free_.erase(hole);
    }
  }

 private:
  [[noreturn]] void refuse(int64_t bytes) const {
    int64_t used = 0;
    for (const auto& [offset, size] : in_use_) used += size;
    FSDP_THROW(kMemory, "[memory] no ", format_bytes(bytes), " left in the fixed pool of ", format_bytes(pool_bytes_),
               ": ", format_bytes(used), " are in use. Give AllocatorOptions::fixed_pool() at least ",
               format_bytes(used + bytes), ", or shard smaller units.");
  }

  int64_t pool_bytes_;
  c10::DataPtr arena_;
  StreamPoint released_;               // pieces are cut anew, so the last return counts for all
  std::map<int64_t, int64_t> free_;    // offset -> bytes
  std::map<int64_t, int64_t> in_use_;  // likewise
};

}  // namespace

std::unique_ptr<BufferAllocator> make_fixed_pool_allocator(c10::Device device, int64_t pool_bytes) {
  return std::make_unique<FixedPoolAllocator>(device, pool_bytes);
}

}  // namespace fsdp
