#include "tests/fuzz/cost_gate.h"

#include <ctime>

#include "tests/fuzz/promises.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FUZZ_SEES_MEMORY
#include <sanitizer/allocator_interface.h>

#include <atomic>
#endif
#endif

namespace fsdp::fuzz {
namespace {

constexpr int64_t kMaxNs = 1'000'000'000;

int64_t cpu_time_ns() {
  timespec now = {};
  FUZZ_REQUIRE(::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

#ifdef FUZZ_SEES_MEMORY
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

void start_counting(size_t input_bytes) {
  static const int installed = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
  FUZZ_REQUIRE(installed > 0);
  held_bytes = 0;
  limit_bytes = kFreeBytes + 4 * static_cast<int64_t>(input_bytes);
}

void stop_counting() { limit_bytes = 0; }
#else
void start_counting(size_t) {}
void stop_counting() {}
#endif

}  // namespace

CostGate::CostGate(size_t input_bytes) : start_ns_(cpu_time_ns()) { start_counting(input_bytes); }

CostGate::~CostGate() {
  stop_counting();
  FUZZ_REQUIRE(cpu_time_ns() - start_ns_ <= kMaxNs);
}

}  // namespace fsdp::fuzz
