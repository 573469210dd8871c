#include "fsdp/buffer/buffer_allocator.h"

#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/units.h"

namespace fsdp {

namespace {

struct SharedSlab {
  std::shared_ptr<comm::SharedArena> arena;
  void* memory;
  int64_t bytes;
};

void free_shared(void* context) {
  const std::unique_ptr<SharedSlab> slab(static_cast<SharedSlab*>(context));
  slab->arena->give_back(slab->memory, slab->bytes, comm::SharedArena::Keep::kNothing);
}

c10::DataPtr take_shared(const std::shared_ptr<comm::SharedArena>& arena, int64_t bytes, c10::Device device) {
  auto slab = std::make_unique<SharedSlab>(SharedSlab{arena, arena->take(bytes), bytes});
  void* memory = slab->memory;
  return {memory, slab.release(), &free_shared, device};
}

}  // namespace

c10::DataPtr BufferAllocator::take_from_system(int64_t bytes) {
  const auto allocate = [&] {
    return arena_ ? take_shared(arena_, bytes, device_)
                  : c10::GetAllocator(device_.type())->allocate(static_cast<size_t>(bytes));
  };
  c10::DataPtr memory;
  try {
    memory = allocate();
  } catch (const std::exception&) {
    trim();
    try {
      memory = allocate();
    } catch (const std::exception& error) {
      FSDP_THROW(kMemory, "[memory] no ", format_bytes(bytes), " for gathered weights or gradients: ", error.what(),
                 ". Shard smaller units, or use more ranks.");
    }
  }
  ++num_allocations_;
  reserved_bytes_ += bytes;
  return memory;
}

void BufferAllocator::return_to_system(c10::DataPtr memory, int64_t bytes) {
  memory.clear();
  reserved_bytes_ -= bytes;
}

std::unique_ptr<BufferAllocator> make_buffer_allocator(const AllocatorOptions& options, c10::Device device) {
  FSDP_CHECK(options.slabs >= 0, "[allocator] slabs: got ", options.slabs, ", expected at least 0.");
  FSDP_CHECK(options.slabs == 0 || options.kind == AllocatorKind::kRotary,
             "[allocator] slabs means something to the rotary allocator only. Use AllocatorOptions::rotary(n).");
  FSDP_CHECK((options.pool_bytes > 0) == (options.kind == AllocatorKind::kFixedPool), "[allocator] pool_bytes: got ",
             options.pool_bytes, ", expected a size above 0 for the fixed pool and none for the other kinds. Use ",
             "AllocatorOptions::fixed_pool(bytes).");
  switch (options.kind) {
    case AllocatorKind::kDirect:
      return make_direct_allocator(device);
    case AllocatorKind::kStorageResize:
      return make_storage_resize_allocator(device);
    case AllocatorKind::kRotary:
      return make_rotary_allocator(device, options.slabs);
    case AllocatorKind::kFixedPool:
      return make_fixed_pool_allocator(device, options.pool_bytes);
    case AllocatorKind::kTraced:
      return make_traced_allocator(device);
  }
  FSDP_THROW(kUsage, "[allocator] got an unknown kind.");
}

}  // namespace fsdp
