#include "fsdp/comm/host/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/units.h"

namespace fsdp::comm {
namespace {

// The kernel undoes an allocation that a signal interrupts, so large ones go in pieces.
constexpr int64_t kPiece = 64 * kMiB;
// Another process of this user can open the file under /proc; it must not cut off what ranks have mapped.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// What is worth asking first how much there is.
constexpr int64_t kLarge = kMiB;

int64_t round_up(int64_t bytes) {
  return (std::max<int64_t>(bytes, 1) + SharedArena::kAlignment - 1) / SharedArena::kAlignment *
         SharedArena::kAlignment;
}

// Beyond this the kernel would end a process rather than refuse. No limit where it does not say.
int64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  int64_t sum = 0;
  int found = 0;
  for (std::string line; found < 2 && std::getline(file, line);) {
    long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %ld", &kib) == 1 ||
        std::sscanf(line.c_str(), "SwapFree: %ld", &kib) == 1) {
      sum += kib * kKiB;
      ++found;
    }
  }
  return found == 2 ? sum : std::numeric_limits<int64_t>::max();
}

int allocate(const FileDescriptor& file, int mode, int64_t begin, int64_t end) {
  int result = 0;
  do {
    result = fallocate(file.get(), mode, begin, end - begin);
  } while (result != 0 && errno == EINTR);
  return result;
}

}  // namespace

bool keeps_its_size(const FileDescriptor& file) {
  const int seals = fcntl(file.get(), F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

SharedMapping::SharedMapping(const FileDescriptor& file, int64_t bytes) {
  void* address =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (address == MAP_FAILED) return;
  base_ = static_cast<std::byte*>(address);
  size_ = bytes;
  madvise(base_, static_cast<size_t>(size_), MADV_DONTDUMP);
  madvise(base_, static_cast<size_t>(size_), MADV_HUGEPAGE);  // where the system allows it for shared memory
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), size_(std::exchange(other.size_, 0)) {}

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

SharedMapping::~SharedMapping() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(size_));
}

SharedArena::SharedArena(int64_t bytes, int64_t head_bytes) : head_bytes_(round_up(head_bytes)) {
  file_ = FileDescriptor(memfd_create("fsdp-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file_) FSDP_THROW(kMemory, "[memory] this system has no shared memory: ", std::strerror(errno), ".");
  const int64_t least = head_bytes_ + kAlignment;
  for (int64_t size = std::max(round_up(bytes), least); mapping_.base() == nullptr; size = round_up(size / 2)) {
    if (ftruncate(file_.get(), size) == 0) mapping_ = SharedMapping(file_, size);
    if (mapping_.base() == nullptr && size / 2 < least) {
      FSDP_THROW(kMemory, "[memory] this system maps no ", format_bytes(size),
                 " of shared memory: ", std::strerror(errno), ".");
    }
  }
  if (fcntl(file_.get(), F_ADD_SEALS, kSeals) != 0) {
    FSDP_THROW(kMemory, "[memory] this system does not keep the size of shared memory: ", std::strerror(errno), ".");
  }
  back(0, head_bytes_);
  free_.add(head_bytes_, mapping_.size());
}

void* SharedArena::take(int64_t bytes) {
  const int64_t size = round_up(bytes);
  const std::lock_guard lock(mutex_);
  const int64_t begin = free_.first_fit(size);
  if (begin < 0) {
    FSDP_THROW(kMemory, "[memory] no ", format_bytes(size), " in a piece left in this rank's ",
               format_bytes(mapping_.size()), " of shared memory: ", format_bytes(in_use_),
               " are in use. Shard smaller units, or over more ranks.");
  }
  for (const auto& [from, to] : backed_.missing(begin, begin + size)) back(from, to);
  free_.remove(begin, begin + size);
  in_use_ += size;
  return mapping_.base() + begin;
}

void SharedArena::back(int64_t begin, int64_t end) {
  if (end - begin >= kLarge && end - begin > available_bytes()) refuse(end - begin, "the rest is in use");
  // The pages are there then, and whoever touches one first maps it: most of a slab may be for other ranks.
  for (int64_t from = begin; from < end; from += kPiece) {
    const int64_t to = std::min(end, from + kPiece);
    if (allocate(file_, 0, from, to) != 0) {
      const std::string reason = std::strerror(errno);
      release(begin, to);
      refuse(end - begin, reason);
    }
  }
  backed_.add(begin, end);
}

void SharedArena::refuse(int64_t bytes, const std::string& reason) const {
  FSDP_THROW(kMemory, "[memory] this host has no ", format_bytes(bytes),
             " left for this rank's shared memory, of which ", format_bytes(in_use_), " are in use: ", reason,
             ". Shard smaller units, or start fewer ranks on this host.");
}

void SharedArena::release(int64_t begin, int64_t end) {
  if (allocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, end) == 0) backed_.remove(begin, end);
}

void SharedArena::give_back(void* slab, int64_t bytes, Keep keep) {
  const int64_t size = round_up(bytes);
  FSDP_ASSERT(contains(slab, size), "memory that is not of this arena");
  const int64_t begin = offset_of(slab);
  const std::lock_guard lock(mutex_);
  if (keep == Keep::kNothing) release(begin, begin + size);
  free_.add(begin, begin + size);
  in_use_ -= size;
}

bool SharedArena::contains(const void* pointer, int64_t bytes) const {
  const int64_t offset = offset_of(pointer);
  return offset >= head_bytes_ && offset + bytes <= mapping_.size();
}

int64_t SharedArena::offset_of(const void* pointer) const {
  return static_cast<int64_t>(reinterpret_cast<intptr_t>(pointer) - reinterpret_cast<intptr_t>(mapping_.base()));
}

int64_t SharedArena::in_use_bytes() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

int64_t SharedArena::backed_bytes() const {
  const std::lock_guard lock(mutex_);
  return backed_.total() - head_bytes_;
}

}  // namespace fsdp::comm
