#include "fsdp/buffer/disk_buffers.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace fsdp {
namespace {

constexpr int64_t kSmallDiskUnit = int64_t{64} << 10;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

int64_t unit_for(int64_t bytes) { return bytes > kHugePageBytes / 2 ? kHugePageBytes : kSmallDiskUnit; }

int64_t whole_units(int64_t bytes) {
  const int64_t unit = unit_for(bytes);
  return std::max(unit, (bytes + unit - 1) / unit * unit);
}

// From the system itself: what an allocator has already used is in small pages, and stays there.
std::byte* map_pages(int64_t bytes) {
  const int64_t spare = bytes % kHugePageBytes == 0 ? kHugePageBytes : 0;
  void* mapped = mmap(nullptr, static_cast<size_t>(bytes + spare), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                      /*fd=*/-1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::byte*>(mapped);
  if (spare == 0) return begin;
  const auto beyond = static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin) % kHugePageBytes);
  const int64_t before = beyond == 0 ? 0 : kHugePageBytes - beyond;
  if (before > 0) munmap(begin, static_cast<size_t>(before));
  if (before < spare) munmap(begin + before + bytes, static_cast<size_t>(spare - before));
  madvise(begin + before, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return begin + before;
}

void unmap_pages(std::byte* begin, int64_t bytes) { munmap(begin, static_cast<size_t>(bytes)); }

}  // namespace

DiskBuffers::~DiskBuffers() {
  for (const Piece& piece : idle_) unmap_pages(piece.begin, piece.bytes);
}

std::shared_ptr<std::byte> DiskBuffers::take(int64_t bytes) {
  Piece piece{nullptr, whole_units(bytes)};
  std::deque<Piece> surplus;
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(idle_.begin(), idle_.end(), [&](const Piece& idle) { return idle.bytes == piece.bytes; });
    if (found != idle_.end()) {
      piece = *found;
      idle_bytes_ -= piece.bytes;
      idle_.erase(found);
    }
    used_bytes_ += piece.bytes;
    surplus = take_surplus();
  }
  for (const Piece& each : surplus) unmap_pages(each.begin, each.bytes);
  if (piece.begin == nullptr) piece.begin = map_pages(piece.bytes);
  return {piece.begin, [keep = shared_from_this(), piece](std::byte*) { keep->give_back(piece); }};
}

void DiskBuffers::give_back(Piece piece) {
  std::deque<Piece> surplus;
  {
    const std::lock_guard lock(mutex_);
    used_bytes_ -= piece.bytes;
    idle_.push_back(piece);
    idle_bytes_ += piece.bytes;
    surplus = take_surplus();
  }
  for (const Piece& each : surplus) unmap_pages(each.begin, each.bytes);
}

std::deque<DiskBuffers::Piece> DiskBuffers::take_surplus() {
  std::deque<Piece> surplus;
  while (!idle_.empty() && used_bytes_ + idle_bytes_ > kMostKept) {
    surplus.push_back(idle_.front());
    idle_bytes_ -= idle_.front().bytes;
    idle_.pop_front();
  }
  return surplus;
}

int64_t DiskBuffers::idle_bytes() const {
  const std::lock_guard lock(mutex_);
  return idle_bytes_;
}

}  // namespace fsdp
