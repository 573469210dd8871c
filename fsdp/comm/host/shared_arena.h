#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "fsdp/base/file_descriptor.h"
#include "fsdp/memory/offset_ranges.h"

namespace fsdp::comm {

// Memory of a file, mapped for reading and writing until the object goes; empty if the system refused.
class SharedMapping {
 public:
  SharedMapping() = default;
  SharedMapping(const FileDescriptor& file, int64_t bytes);
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();

  std::byte* base() const { return base_; }
  int64_t size() const { return size_; }

 private:
  std::byte* base_ = nullptr;
  int64_t size_ = 0;
};

// Whether nobody can make the file of an arena smaller, as who reads what was cut off would be ended by a signal.
bool keeps_its_size(const FileDescriptor& file);

// The thread sanitizer has room for little more than a terabyte of mappings.
#ifdef __SANITIZE_THREAD__
inline constexpr int64_t kDefaultArenaBytes = int64_t{1} << 30;
#else
inline constexpr int64_t kDefaultArenaBytes = int64_t{64} << 30;
#endif

// Memory of one rank that the other ranks of its host can map: what lies in it need not be sent. It has no name, so
// nothing of it outlives the processes that map it, and its size is sealed. Addresses are many and cheap; memory is
// taken from the system when it is first used. Thread-safe.
class SharedArena {
 public:
  static constexpr int64_t kAlignment = 4096;
  // What becomes of the memory of a slab that is given back. Returning it to the system costs about as much as getting
  // it did.
  enum class Keep { kPages, kNothing };

  // `bytes` of addresses, or as many as the system grants. The first `head_bytes` hold zeros and are never handed out.
  // Throws Error(kMemory).
  SharedArena(int64_t bytes, int64_t head_bytes);
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  // A slab of at least `bytes`, aligned to kAlignment; contents are left over from its last user. Throws
  // Error(kMemory); using what it returned never fails.
  void* take(int64_t bytes);
  // `bytes` as given to take().
  void give_back(void* slab, int64_t bytes, Keep keep);

  // Whether all of these bytes lie in what take() hands out.
  bool contains(const void* pointer, int64_t bytes = 1) const;
  int64_t offset_of(const void* pointer) const;
  std::byte* base() const { return mapping_.base(); }
  int64_t size() const { return mapping_.size(); }
  const FileDescriptor& file() const { return file_; }

  int64_t in_use_bytes() const;
  // In use, or kept for the next user.
  int64_t backed_bytes() const;

 private:
  void back(int64_t begin, int64_t end);
  [[noreturn]] void refuse(int64_t bytes, const std::string& reason) const;
  void release(int64_t begin, int64_t end);

  FileDescriptor file_;
  SharedMapping mapping_;
  int64_t head_bytes_;
  mutable std::mutex mutex_;
  OffsetRanges free_;
  OffsetRanges backed_;
  int64_t in_use_ = 0;
};

}  // namespace fsdp::comm
