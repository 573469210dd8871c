// Preloaded: some calls of `operator new` of one rank, one after the other, find no memory. REFUSED_NEW is
// "FIRST:NUMBER:RANK"; RANK is the rank's own. Calls are counted from where the program says what is to happen when
// memory ends: at first before it loads LibTorch, then before it runs a verb. REFUSED_NEW_FROM says which one, 1 or 2.
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long> calls{0};
std::atomic<std::new_handler> handler{nullptr};
std::atomic<int> beginnings{0};
long first = -1, number = 0, from = 2;

__attribute__((constructor)) void begin() {
  long rank = -1;
  const char* wanted = std::getenv("REFUSED_NEW");
  const char* own = std::getenv("RANK");
  if (wanted == nullptr || own == nullptr || std::sscanf(wanted, "%ld:%ld:%ld", &first, &number, &rank) != 3 ||
      std::atol(own) != rank) {
    number = 0;
  }
  if (const char* text = std::getenv("REFUSED_NEW_FROM")) from = std::atol(text);
}

}  // namespace

std::new_handler std::set_new_handler(std::new_handler chosen) noexcept {
  calls = 0;
  ++beginnings;
  return handler.exchange(chosen);
}

std::new_handler std::get_new_handler() noexcept { return handler; }

void* operator new(std::size_t bytes) {
  const long call = calls.fetch_add(1, std::memory_order_relaxed);
  const bool refuses = beginnings >= from && call >= first && call < first + number;
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
