#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "fsdp/base/stream_point.h"
#include "fsdp/comm/host/shared_arena.h"

namespace fsdp {

// Where the memory of buffers comes from that come and go every step: gathered weights, gradients on their way.
enum class AllocatorKind {
  kDirect,         // from the operating system at each use, back to it after: least memory, a page fault for each page;
                   // CPU only
  kStorageResize,  // from LibTorch's allocator at each use: as if each tensor's storage were resized
  kRotary,         // slabs that users of one size take in turn
  kFixedPool,      // one arena of a given size, for programs that must not grow
  kTraced,         // the first step is recorded; from then on every buffer has its address in one arena of planned size
};

struct AllocatorOptions {
  AllocatorKind kind = AllocatorKind::kRotary;
  int slabs = 0;           // kRotary: slabs of one size that are kept; 0: as many as were ever in use together
  int64_t pool_bytes = 0;  // kFixedPool: the size of the arena
  // For tests: memory that comes back is filled with bytes 0xff (NaN), so that who reads it too late is found out.
  bool poison = false;

  static AllocatorOptions direct() { return {AllocatorKind::kDirect, 0, 0}; }
  static AllocatorOptions storage_resize() { return {AllocatorKind::kStorageResize, 0, 0}; }
  static AllocatorOptions rotary(int slabs = 0) { return {AllocatorKind::kRotary, slabs, 0}; }
  static AllocatorOptions fixed_pool(int64_t bytes) { return {AllocatorKind::kFixedPool, 0, bytes}; }
  static AllocatorOptions traced() { return {AllocatorKind::kTraced, 0, 0}; }

  bool operator==(const AllocatorOptions&) const = default;
};

// Memory for such buffers. Not thread-safe: it belongs to a Context. Rotary, FixedPool and Traced take nothing from the
// system once a step has shown what is needed.
//
// On a device memory comes back while the work that uses it is still under way, and is handed out again at once. This
// is safe by one rule: give_back() is called on the stream that computes, after that stream was made to wait for every
// other stream that used the memory. The allocator takes note of that point of the stream (one for each piece; memory
// is not shared out by streams, and nothing is recorded with LibTorch's allocator). Whoever takes the memory on the
// computing stream comes after the point by itself; another stream, the gathers', has to wait for ready(), and for
// nothing that was computed later: a wait for all of the computing stream at the time of the gather would also be
// right, but a gather issued after a unit's computation could then never overlap it.
// After: the allocators of Megatron-FSDP's param_and_grad_buffer.py (temporary, storage-resize, rotary, fixed pool,
// traced).
class BufferAllocator {
 public:
  static constexpr int64_t kAlignment = 64;  // bytes
  // What `bytes` take where pieces lie side by side: whole alignments, at least one.
  static constexpr int64_t aligned_size(int64_t bytes) {
    return bytes <= kAlignment ? kAlignment : (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  explicit BufferAllocator(c10::Device device) : device_(device) {}
  // From now on memory of the system is memory that ranks of this host can read (CPU only).
  void share(std::shared_ptr<comm::SharedArena> arena) { arena_ = std::move(arena); }
  virtual ~BufferAllocator() = default;
  BufferAllocator(const BufferAllocator&) = delete;
  BufferAllocator& operator=(const BufferAllocator&) = delete;

  // At least `bytes`, aligned to kAlignment; contents are left over from the last user. Throws Error(kMemory).
  virtual c10::DataPtr take(int64_t bytes) = 0;
  // On a device the memory is used no more after `end`; without one, after what the current stream has been given.
  void give_back(c10::DataPtr memory, int64_t bytes, const StreamPoint& end = {});
  // Of the memory that was taken last: what other streams do in it comes after this point. Empty on the CPU.
  const StreamPoint& ready() const { return ready_; }
  // A step is over. Called between steps; means nothing while buffers are in use.
  virtual void end_of_step() {}
  // Returns what lies idle to the system.
  virtual void trim() {}
  void set_poison(bool poison) { poisons_ = poison; }
  // Bytes held from the system, in use or idle.
  int64_t reserved_bytes() const { return reserved_bytes_; }
  // How often memory was taken from the system.
  int64_t num_allocations() const { return num_allocations_; }

 protected:
  virtual void take_back(c10::DataPtr memory, int64_t bytes, const StreamPoint& end) = 0;
  // From LibTorch's allocator for the device, on the current stream; counted. Throws Error(kMemory) after trim() did
  // not help. Sets ready_: other users of that stream may just have returned this memory.
  c10::DataPtr take_from_system(int64_t bytes);
  void return_to_system(c10::DataPtr memory, int64_t bytes);
  bool is_shared() const { return arena_ != nullptr; }

  std::shared_ptr<comm::SharedArena> arena_;
  c10::Device device_;
  StreamPoint ready_;
  int64_t reserved_bytes_ = 0;
  int64_t num_allocations_ = 0;
  bool poisons_ = false;
};

// Throws Error(kUsage) for options that contradict each other.
std::unique_ptr<BufferAllocator> make_buffer_allocator(const AllocatorOptions& options, c10::Device device);

// One for each kind.
std::unique_ptr<BufferAllocator> make_direct_allocator(c10::Device device);
std::unique_ptr<BufferAllocator> make_storage_resize_allocator(c10::Device device);
std::unique_ptr<BufferAllocator> make_rotary_allocator(c10::Device device, int slabs);
std::unique_ptr<BufferAllocator> make_fixed_pool_allocator(c10::Device device, int64_t pool_bytes);
std::unique_ptr<BufferAllocator> make_traced_allocator(c10::Device device);

}  // namespace fsdp
