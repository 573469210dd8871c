#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdp::checkpoint {

// Page-aligned host memory that is kept for the next time, in huge pages where the system has them. Move-only.
class HostArena {
 public:
  HostArena() = default;
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // At least `bytes`, rounded up to whole pages. Content is lost when it has to grow. Throws Error(kMemory).
  void resize(uint64_t bytes);
  void* data() const { return data_; }

 private:
  void release() noexcept;

  void* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace fsdp::checkpoint
