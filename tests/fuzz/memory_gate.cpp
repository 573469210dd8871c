#include "tests/fuzz/memory_gate.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FUZZ_HAS_HOOKS
#endif
#endif

#ifdef FUZZ_HAS_HOOKS
#include <sanitizer/allocator_interface.h>

#include <atomic>
#include <cstdint>

#include "tests/fuzz/promises.h"

namespace fsdp::fuzz {
namespace {

constexpr int64_t kFreeBytes = int64_t{64} << 20;

std::atomic<int64_t> held_bytes{0};   // since the gate was made; negative where older memory was freed
std::atomic<int64_t> limit_bytes{0};  // 0: no gate

void on_malloc(const volatile void*, size_t num_bytes) {
  const int64_t limit = limit_bytes.load(std::memory_order_relaxed);
  if (limit == 0) return;
  const int64_t held = held_bytes.fetch_add(static_cast<int64_t>(num_bytes)) + static_cast<int64_t>(num_bytes);
  if (held <= limit) return;
  limit_bytes = 0;  // the report allocates too
  FUZZ_REQUIRE(!"the reader holds at most 64 MiB and four times its input");
}

void on_free(const volatile void* memory) {
  if (limit_bytes.load(std::memory_order_relaxed) == 0 || memory == nullptr) return;
  held_bytes -= static_cast<int64_t>(__sanitizer_get_allocated_size(memory));
}

}  // namespace

MemoryGate::MemoryGate(size_t input_bytes) {
  static const int installed = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
  FUZZ_REQUIRE(installed > 0);
  held_bytes = 0;
  limit_bytes = kFreeBytes + 4 * static_cast<int64_t>(input_bytes);
}

MemoryGate::~MemoryGate() { limit_bytes = 0; }

}  // namespace fsdp::fuzz
#else
namespace fsdp::fuzz {

MemoryGate::MemoryGate(size_t) {}
MemoryGate::~MemoryGate() = default;

}  // namespace fsdp::fuzz
#endif
