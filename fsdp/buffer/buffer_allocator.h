#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "fsdp/comm/shared_arena.h"

namespace fsdp {

// Where the memory of buffers comes from that come and go every step: gathered weights, gradients on their way.
enum class AllocatorKind {
  kDirect,         // from the operating system at each use, back to it after: least memory, a page fault for each page
  kStorageResize,  // from LibTorch's allocator at each use: as if each tensor's storage were resized
  kRotary,         // slabs that users of one size take in turn
  kFixedPool,      // one arena of a given size, for programs that must not grow
  kTraced,         // the first step is recorded; from then on every buffer has its address in one arena of planned size
};

struct AllocatorOptions {
  AllocatorKind kind = AllocatorKind::kRotary;
  int slabs = 0;           // kRotary: slabs of one size that are kept; 0: as many as were ever in use together
  int64_t pool_bytes = 0;  // kFixedPool: the size of the arena

  static AllocatorOptions direct() { return {AllocatorKind::kDirect, 0, 0}; }
  static AllocatorOptions storage_resize() { return {AllocatorKind::kStorageResize, 0, 0}; }
  static AllocatorOptions rotary(int slabs = 0) { return {AllocatorKind::kRotary, slabs, 0}; }
  static AllocatorOptions fixed_pool(int64_t bytes) { return {AllocatorKind::kFixedPool, 0, bytes}; }
  static AllocatorOptions traced() { return {AllocatorKind::kTraced, 0, 0}; }

  bool operator==(const AllocatorOptions&) const = default;
};

// Memory for such buffers. Not thread-safe: it belongs to a Context. Rotary, FixedPool and Traced take nothing from the
// system once a step has shown what is needed.
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
  virtual void give_back(c10::DataPtr memory, int64_t bytes) = 0;
  // A step is over. Called between steps; means nothing while buffers are in use.
  virtual void end_of_step() {}
  // Returns what lies idle to the system.
  virtual void trim() {}
  // Bytes held from the system, in use or idle.
  int64_t reserved_bytes() const { return reserved_bytes_; }
  // How often memory was taken from the system.
  int64_t num_allocations() const { return num_allocations_; }

 protected:
  // From LibTorch's allocator for the device; counted. Throws Error(kMemory) after trim() did not help.
  c10::DataPtr take_from_system(int64_t bytes);
  void return_to_system(c10::DataPtr memory, int64_t bytes);
  bool is_shared() const { return arena_ != nullptr; }

  std::shared_ptr<comm::SharedArena> arena_;
  c10::Device device_;
  int64_t reserved_bytes_ = 0;
  int64_t num_allocations_ = 0;
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
