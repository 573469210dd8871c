#include "fsdp/memory/host_cache.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>

#include "fsdp/memory/offset_ranges.h"

namespace fsdp {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kAllowed = false;  // it would hide what they look for
#else
constexpr bool kAllowed = true;
#endif

constexpr int64_t kReserved = int64_t{1} << 40;  // addresses only
constexpr int64_t kLeastReserved = int64_t{1} << 33;
constexpr int64_t kAlignment = 64;              // a cache line, as LibTorch promises
constexpr int64_t kGrowth = int64_t{16} << 20;  // made accessible at a time
constexpr int64_t kPage = 4096;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// One range of addresses, filled from its start: the first gap that is large enough is taken, so that what is held
// stays dense. Neighbouring gaps are one.
class HostCache final : public c10::Allocator {
 public:
  // Never destroyed: tensors outlive every static.
  static HostCache& instance() {
    static auto* cache = new HostCache;
    return *cache;
  }

  bool enable() {
    const std::lock_guard lock(mutex_);
    if (is_on_) return true;
    previous_ = c10::GetCPUAllocator();
    if (previous_->raw_deleter() == nullptr || !reserve()) return false;
    c10::SetCPUAllocator(this, kPriority);
    return is_on_ = true;
  }

  void disable() {
    const std::lock_guard lock(mutex_);
    if (is_on_) c10::SetCPUAllocator(previous_, kPriority);
    is_on_ = false;
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (static_cast<int64_t>(bytes) >= kHostCacheThreshold) {
      data = take(round_up(static_cast<int64_t>(bytes), kAlignment));
      if (data != nullptr) report(data, static_cast<int64_t>(bytes));
    }
    if (data == nullptr) data = previous_->raw_allocate(bytes);
    return {data, data, &give_back, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  HostCacheStats stats() {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    stats_.peak_in_use_bytes = stats_.in_use_bytes;
  }

  int64_t trim() {
    const std::lock_guard lock(mutex_);
    for (const auto& [begin, end] : free_.ends()) {
      const int64_t first = round_up(begin, kPage), last = end / kPage * kPage;
      if (first >= last || madvise(base_ + first, static_cast<size_t>(last - first), MADV_DONTNEED) != 0) continue;
      held_.remove(first, last);
    }
    const int64_t held_before = std::exchange(stats_.held_bytes, held_.total());
    return held_before - stats_.held_bytes;
  }

 private:
  static constexpr uint8_t kPriority = 1;

  bool reserve() {
    for (int64_t bytes = kReserved; kAllowed && base_ == nullptr && bytes >= kLeastReserved; bytes /= 2) {
      // Counted against the system's memory when it is made accessible, so that a refusal comes then.
      void* address = mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, 0);
      if (address == MAP_FAILED) continue;
      base_ = static_cast<std::byte*>(address);
      reserved_ = bytes;
      madvise(base_, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // where the system allows it
    }
    return base_ != nullptr;
  }

  std::byte* take(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    int64_t begin = free_.first_fit(bytes);
    if (begin < 0) {
      begin = grow(bytes);
      if (begin < 0) return nullptr;
    }
    free_.remove(begin, begin + bytes);
    sizes_.emplace(base_ + begin, bytes);
    note(begin, bytes);
    return base_ + begin;
  }

  // Makes more of the addresses accessible; where a gap of `bytes` begins then.
  int64_t grow(int64_t bytes) {
    const int64_t begin = free_.begin_of_range_to(accessible_).value_or(accessible_);
    const int64_t end = round_up(begin + bytes, kGrowth);
    if (end > reserved_) return -1;
    if (mprotect(base_ + accessible_, static_cast<size_t>(end - accessible_), PROT_READ | PROT_WRITE) != 0) return -1;
    free_.add(accessible_, end);
    accessible_ = end;
    return begin;
  }

  void note(int64_t begin, int64_t bytes) {
    stats_.in_use_bytes += bytes;
    stats_.peak_in_use_bytes = std::max(stats_.peak_in_use_bytes, stats_.in_use_bytes);
    stats_.allocations += 1;
    if (held_.missing(begin, begin + bytes).empty()) return;
    held_.add(begin, begin + bytes);
    stats_.growths += 1;
    stats_.held_bytes = held_.total();
    stats_.peak_held_bytes = std::max(stats_.peak_held_bytes, stats_.held_bytes);
  }

  static void give_back(void* data) {
    HostCache& cache = instance();
    const int64_t offset = static_cast<std::byte*>(data) - cache.base_;
    if (offset < 0 || offset >= cache.reserved_) return cache.previous_->raw_deallocate(data);
    int64_t bytes = 0;
    {
      const std::lock_guard lock(cache.mutex_);
      const auto found = cache.sizes_.find(data);
      bytes = found->second;
      cache.sizes_.erase(found);
      cache.release(offset, offset + bytes);
      cache.stats_.in_use_bytes -= bytes;
    }
    cache.report(data, -bytes);
  }

  // A deleter lets no error out, and comes when memory has run out more often than at any other time: then the range is
  // not used again.
  void release(int64_t begin, int64_t end) noexcept {
    try {
      free_.add(begin, end);
    } catch (const std::bad_alloc&) {
    }
  }

  // LibTorch's profiler shows memory by what allocators tell it.
  void report(void* data, int64_t change) {
    if (!c10::memoryProfilingEnabled()) return;
    const HostCacheStats now = stats();
    c10::reportMemoryUsageToProfiler(data, change, static_cast<size_t>(now.in_use_bytes),
                                     static_cast<size_t>(now.held_bytes), c10::Device(c10::kCPU));
  }

  std::mutex mutex_;
  bool is_on_ = false;
  c10::Allocator* previous_ = nullptr;
  std::byte* base_ = nullptr;
  int64_t reserved_ = 0;
  int64_t accessible_ = 0;
  OffsetRanges free_;
  OffsetRanges held_;  // touched since the system gave it
  std::unordered_map<void*, int64_t> sizes_;
  HostCacheStats stats_;
};

}  // namespace

bool enable_host_cache() { return HostCache::instance().enable(); }
void disable_host_cache() { HostCache::instance().disable(); }
HostCacheStats host_cache_stats() { return HostCache::instance().stats(); }
void reset_host_cache_peak() { HostCache::instance().reset_peak(); }
int64_t trim_host_cache() { return HostCache::instance().trim(); }

}  // namespace fsdp
