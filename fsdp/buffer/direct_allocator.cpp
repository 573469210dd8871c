#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/units.h"
#include "fsdp/buffer/buffer_allocator.h"

namespace fsdp {
namespace {

class StorageResizeAllocator : public BufferAllocator {
 public:
  using BufferAllocator::BufferAllocator;
  c10::DataPtr take(int64_t bytes) override { return take_from_system(bytes); }
  void take_back(c10::DataPtr memory, int64_t bytes, const StreamPoint&) override {
    return_to_system(std::move(memory), bytes);
  }
};

// Pages of the operating system, mapped and unmapped each time.
class DirectAllocator : public BufferAllocator {
 public:
  using BufferAllocator::BufferAllocator;

  c10::DataPtr take(int64_t bytes) override {
    if (is_shared()) return take_from_system(bytes);
    auto* pages = new Pages{nullptr, static_cast<size_t>(bytes > 0 ? bytes : 1)};
    pages->begin = mmap(nullptr, pages->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages->begin == MAP_FAILED) {
      const int error = errno;
      delete pages;
      FSDP_THROW(kMemory, "[memory] no ", format_bytes(bytes),
                 " for gathered weights or gradients: ", std::strerror(error),
                 ". Shard smaller units, or use more ranks.");
    }
    ++num_allocations_;
    reserved_bytes_ += bytes;
    return {pages->begin, pages, &unmap, device_};
  }

  void take_back(c10::DataPtr memory, int64_t bytes, const StreamPoint&) override {
    return_to_system(std::move(memory), bytes);
  }

 private:
  struct Pages {
    void* begin;
    size_t size;
  };
  static void unmap(void* context) {
    auto* pages = static_cast<Pages*>(context);
    munmap(pages->begin, pages->size);
    delete pages;
  }
};

}  // namespace

std::unique_ptr<BufferAllocator> make_storage_resize_allocator(c10::Device device) {
  return std::make_unique<StorageResizeAllocator>(device);
}

std::unique_ptr<BufferAllocator> make_direct_allocator(c10::Device device) {
  FSDP_CHECK(device.is_cpu(), "[allocator] direct: got device ", device, ", expected cpu.");
  return std::make_unique<DirectAllocator>(device);
}

}  // namespace fsdp
