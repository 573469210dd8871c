#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

namespace fsdp {

// Memory between a disk and those who pass over what is there. Begins at a page; large pieces are in huge pages where
// the system has them, so that the disk gets few long pieces. What comes back is kept for the next taker, which then
// takes no page faults. Thread-safe.
class DiskBuffers : public std::enable_shared_from_this<DiskBuffers> {
 public:
  static constexpr int64_t kMostKept = int64_t{96} << 20;  // bytes in use and idle: idle ones go when there are more

  DiskBuffers() = default;
  ~DiskBuffers();
  DiskBuffers(const DiskBuffers&) = delete;
  DiskBuffers& operator=(const DiskBuffers&) = delete;

  // At least `bytes`, with whatever its last user left there; comes back when nobody has the pointer any more. Throws
  // std::bad_alloc.
  std::shared_ptr<std::byte> take(int64_t bytes);
  int64_t idle_bytes() const;

 private:
  struct Piece {
    std::byte* begin;
    int64_t bytes;
  };
  void give_back(Piece piece);
  std::deque<Piece> take_surplus();

  mutable std::mutex mutex_;
  std::deque<Piece> idle_;  // oldest first
  int64_t idle_bytes_ = 0;
  int64_t used_bytes_ = 0;
};

}  // namespace fsdp
