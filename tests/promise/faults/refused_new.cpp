// Preloaded: some calls of `operator new` of one rank, one after the other, find no memory. REFUSED_NEW is
// "FIRST:NUMBER:RANK"; RANK is the rank's own.
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long> calls{0};
long first = -1, number = 0;

// When libraries have been initialised: what they do before that is not the program's.
__attribute__((constructor)) void begin() {
  long rank = -1;
  const char* wanted = std::getenv("REFUSED_NEW");
  const char* own = std::getenv("RANK");
  if (wanted == nullptr || own == nullptr || std::sscanf(wanted, "%ld:%ld:%ld", &first, &number, &rank) != 3 ||
      std::atol(own) != rank) {
    number = 0;
  }
  calls = 0;
}

}  // namespace

void* operator new(std::size_t bytes) {
  const long call = calls.fetch_add(1, std::memory_order_relaxed);
  const bool refuses = call >= first && call < first + number;
  void* data = refuses ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (data == nullptr) {
    if (const std::new_handler handler = std::get_new_handler()) handler();
    throw std::bad_alloc();
  }
  return data;
}

void* operator new[](std::size_t bytes) { return operator new(bytes); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }
