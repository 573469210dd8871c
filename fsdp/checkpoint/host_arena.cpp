#include "fsdp/checkpoint/host_arena.h"

#include <sys/mman.h>

#include "fsdp/base/check.h"

namespace fsdp::checkpoint {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

HostArena::~HostArena() { release(); }

void HostArena::resize(uint64_t bytes) {
  const size_t wanted = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  if (wanted <= capacity_) return;
  release();
  void* memory = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    FSDP_THROW(kMemory, "[checkpoint] got no memory for a snapshot of ", bytes,
               " bytes, expected as much. Save blocking, or use more ranks.");
  }
  madvise(memory, wanted, MADV_HUGEPAGE);
  data_ = memory;
  capacity_ = wanted;
}

void HostArena::release() noexcept {
  if (data_ != nullptr) munmap(data_, capacity_);
  data_ = nullptr;
  capacity_ = 0;
}

}  // namespace fsdp::checkpoint
