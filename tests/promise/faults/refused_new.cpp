// Preloaded: some calls of `operator new`, one after the other, find no memory. REFUSED_NEW is "FIRST:NUMBER:RANK".
// Calls are counted from where a process says what is to happen when memory ends: at first the launcher, before it
// loads LibTorch for all ranks, then each rank, its copy, before it runs its verb. REFUSED_NEW_FROM says which one, 1
// or 2; RANK is the rank's own and matters in the second.
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long> calls{0};
std::atomic<std::new_handler> handler{nullptr};
std::atomic<int> beginnings{0};
std::atomic<bool> is_meant{false};
long first = -1, number = 0, meant_rank = -1, from = 2;

__attribute__((constructor)) void begin() {
  const char* wanted = std::getenv("REFUSED_NEW");
  if (wanted == nullptr || std::sscanf(wanted, "%ld:%ld:%ld", &first, &number, &meant_rank) != 3) number = 0;
  if (const char* text = std::getenv("REFUSED_NEW_FROM")) from = std::atol(text);
}

}  // namespace

std::new_handler std::set_new_handler(std::new_handler chosen) noexcept {
  const char* own = std::getenv("RANK");
  calls = 0;
  is_meant = ++beginnings == from && (from == 1 || (own != nullptr && std::atol(own) == meant_rank));
  return handler.exchange(chosen);
}

std::new_handler std::get_new_handler() noexcept { return handler; }

void* operator new(std::size_t bytes) {
  const long call = calls.fetch_add(1, std::memory_order_relaxed);
  const bool refuses = is_meant && call >= first && call < first + number;
  void* data = refuses ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (data == nullptr) {
    if (const std::new_handler chosen = handler) chosen();
    throw std::bad_alloc();
  }
  return data;
}

void* operator new[](std::size_t bytes) { return operator new(bytes); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }
