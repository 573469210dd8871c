#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fsdp/base/check.h"
#include "fsdp/buffer/buffer_allocator.h"

namespace fsdp {
namespace {

// A step that takes more buffers never ends: some outlive every backward. It is no longer recorded.
constexpr size_t kLongestStep = size_t{1} << 16;

// A buffer of the recorded step: events are numbered, a take and its return are one event each.
struct Lifetime {
  int64_t bytes = 0;
  size_t taken = 0;
  size_t returned = 0;
  int64_t offset = 0;

  bool meets(const Lifetime& other) const { return taken < other.returned && other.taken < returned; }
};

// Gives every lifetime an offset such that none that meet overlap; returns the bytes needed. Largest first, each at the
// lowest place that is free for as long as it lives: the usual heuristic for this (NP-hard) packing problem.
int64_t plan(std::vector<Lifetime>& lifetimes) {
  std::vector<Lifetime*> order;
  for (Lifetime& lifetime : lifetimes) order.push_back(&lifetime);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
  int64_t total = 0;
  std::vector<Lifetime*> placed;  // by offset
  for (Lifetime* next : order) {
    int64_t offset = 0;
    for (const Lifetime* other : placed) {
      if (!other->meets(*next)) continue;
      if (offset + next->bytes <= other->offset) break;
      offset = std::max(offset, other->offset + other->bytes);
    }
    next->offset = offset;
    total = std::max(total, offset + next->bytes);
    const auto place = std::upper_bound(placed.begin(), placed.end(), offset,
                                        [](int64_t value, const Lifetime* item) { return value < item->offset; });
    placed.insert(place, next);
  }
  return total;
}

// Follows the plan while a step does what the recorded one did; a step that does not is served by the system, and
// planned anew when it is over.
class TracedAllocator : public BufferAllocator {
 public:
  using BufferAllocator::BufferAllocator;

  c10::DataPtr take(int64_t bytes) override {
    const int64_t size = aligned_size(bytes);
    const size_t index = lifetimes_.size();
    const size_t event = events_++;
    follows_plan_ = follows_plan_ && index < plan_.size() && plan_[index].bytes == size && plan_[index].taken == event;
    if (index < kLongestStep) lifetimes_.push_back({size, event, 0, 0});
    ++in_use_;
    if (!follows_plan_) {
      c10::DataPtr memory = take_from_system(size);
      users_[memory.get()] = {index, size};
      return memory;
    }
    ready_ = released_;
    void* address = static_cast<char*>(arena_.get()) + plan_[index].offset;
    users_[address] = {index, size};
    return {address, device_};
  }

  void take_back(c10::DataPtr memory, int64_t, const StreamPoint&) override {
    const auto user = users_.find(memory.get());
    FSDP_ASSERT(user != users_.end(), "memory that is not of this allocator");
    const auto [index, size] = user->second;
    users_.erase(user);
    released_ = StreamPoint::now(device_);
    const size_t event = events_++;
    if (index < kLongestStep) lifetimes_[index].returned = event;
    // A buffer that lives on beyond its plan could be handed out twice.
    if (follows_plan_ && plan_[index].returned != event) follows_plan_ = false;
    --in_use_;
    if (!is_in_arena(memory.get())) return_to_system(std::move(memory), size);
  }

  void end_of_step() override {
    if (in_use_ > 0 || lifetimes_.empty()) return;
    const bool was_planned = follows_plan_ && lifetimes_.size() == plan_.size();
    if (!was_planned && lifetimes_.size() < kLongestStep) replan();
    lifetimes_.clear();
    events_ = 0;
    follows_plan_ = true;
  }

 private:
  bool is_in_arena(const void* memory) const {
    const auto* begin = static_cast<const char*>(arena_.get());
    return arena_ && memory >= begin && memory < begin + arena_bytes_;
  }

  void replan() {
    plan_ = lifetimes_;
    const int64_t bytes = plan(plan_);
    if (bytes <= arena_bytes_) return;
    if (arena_) return_to_system(std::move(arena_), arena_bytes_);
    arena_ = take_from_system(bytes);
    released_ = ready_;
    arena_bytes_ = bytes;
  }

  c10::DataPtr arena_;
  StreamPoint released_;  // buffers share addresses in part, so the last return counts for all
  int64_t arena_bytes_ = 0;
  std::vector<Lifetime> plan_;
  std::vector<Lifetime> lifetimes_;  // of the running step
  struct User {
    size_t lifetime;
    int64_t bytes;
  };
  std::unordered_map<const void*, User> users_;
  size_t events_ = 0;
  int64_t in_use_ = 0;
  bool follows_plan_ = false;
};

}  // namespace

std::unique_ptr<BufferAllocator> make_traced_allocator(c10::Device device) {
  return std::make_unique<TracedAllocator>(device);
}

}  // namespace fsdp
