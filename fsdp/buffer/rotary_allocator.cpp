#include <deque>
#include <unordered_map>
#include <utility>

#include "fsdp/buffer/buffer_allocator.h"

namespace fsdp {
namespace {

// Idle slabs by size, taken in the order in which they came back.
class RotaryAllocator : public BufferAllocator {
 public:
  RotaryAllocator(c10::Device device, int slabs) : BufferAllocator(device), max_slabs_(static_cast<size_t>(slabs)) {}

  c10::DataPtr take(int64_t bytes) override {
    SizeClass& slabs = classes_[bytes];
    if (slabs.idle.empty()) {
      c10::DataPtr slab = take_from_system(bytes);
      ++classes_[bytes].count;
      return slab;
    }
    IdleSlab slab = std::move(slabs.idle.front());
    slabs.idle.pop_front();
    ready_ = std::move(slab.released);
    return std::move(slab.memory);
  }

  void take_back(c10::DataPtr slab, int64_t bytes, const StreamPoint& end) override {
    SizeClass& slabs = classes_[bytes];
    if (max_slabs_ > 0 && slabs.count > max_slabs_) {
      --slabs.count;
      return_to_system(std::move(slab), bytes);
    } else {
      slabs.idle.push_back({std::move(slab), end});
    }
  }

  void trim() override {
    for (auto& [bytes, slabs] : classes_) {
      slabs.count -= slabs.idle.size();
      for (IdleSlab& slab : slabs.idle) return_to_system(std::move(slab.memory), bytes);
      slabs.idle.clear();
    }
  }

 private:
  struct IdleSlab {
    c10::DataPtr memory;
    StreamPoint released;
  };
  struct SizeClass {
    std::deque<IdleSlab> idle;
    size_t count = 0;  // idle and in use
  };

  size_t max_slabs_;
  std::unordered_map<int64_t, SizeClass> classes_;
};

}  // namespace

std::unique_ptr<BufferAllocator> make_rotary_allocator(c10::Device device, int slabs) {
  return std::make_unique<RotaryAllocator>(device, slabs);
}

}  // namespace fsdp
