#include "fsdp/buffer/buffer_allocator.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

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

void BufferAllocator::give_back(c10::DataPtr memory, int64_t bytes, const StreamPoint& end) {
  if (poisons_) {
    const at::TensorOptions options = at::device(device_).dtype(at::kByte);
    at::for_blob(memory.get(), {bytes}).options(options).target_device(device_).make_tensor().fill_(0xff);
  }
  take_back(std::move(memory), bytes, end.defined() && !poisons_ ? end : StreamPoint::now(device_));
}

c10::DataPtr BufferAllocator::take_from_system(int64_t bytes) {
  const auto allocate = [&] {
    if (arena_) return take_shared(arena_, bytes, device_);
    const c10::OptionalDeviceGuard guard(device_.is_cpu() ? std::nullopt : std::optional(device_));
    return c10::GetAllocator(device_.type())->allocate(static_cast<size_t>(bytes));
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
  ready_ = StreamPoint::now(device_);
  return memory;
}

void BufferAllocator::return_to_system(c10::DataPtr memory, int64_t bytes) {
  memory.clear();
  reserved_bytes_ -= bytes;
}

namespace {

std::unique_ptr<BufferAllocator> make_kind(const AllocatorOptions& options, c10::Device device) {
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

}  // namespace

std::unique_ptr<BufferAllocator> make_buffer_allocator(const AllocatorOptions& options, c10::Device device) {
  FSDP_CHECK(options.slabs >= 0, "[allocator] slabs: got ", options.slabs, ", expected at least 0.");
  FSDP_CHECK(options.slabs == 0 || options.kind == AllocatorKind::kRotary,
             "[allocator] slabs means something to the rotary allocator only. Use AllocatorOptions::rotary(n).");
  FSDP_CHECK((options.pool_bytes > 0) == (options.kind == AllocatorKind::kFixedPool), "[allocator] pool_bytes: got ",
             options.pool_bytes, ", expected a size above 0 for the fixed pool and none for the other kinds. Use ",
             "AllocatorOptions::fixed_pool(bytes).");
  auto allocator = make_kind(options, device);
  allocator->set_poison(options.poison);
  return allocator;
}

}  // namespace fsdp
