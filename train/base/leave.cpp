#include "train/base/leave.h"

#include <unistd.h>

#include <atomic>
#include <exception>
#include <new>
#include <string_view>

#include "fsdp/base/error.h"
#include "fsdp/base/lack_of_memory.h"

namespace fsdp::train {
namespace {

constexpr std::string_view kMemoryEnded =
    "fsdp: out of memory where no error can be passed on. Use a smaller microbatch, or more ranks.\n";

std::terminate_handler previous_handler = nullptr;
std::atomic<bool> new_has_failed = false;

void note_failed_new() {
  new_has_failed = true;
  throw std::bad_alloc();
}

bool is_lack_of_memory(const std::exception_ptr& exception) noexcept {
  // A second exception while the first one unwinds: of neither is the type to be had.
  if (exception == nullptr) return new_has_failed && std::uncaught_exceptions() > 0;
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return fsdp::is_lack_of_memory(error);
  } catch (...) {
    return false;
  }
}

[[noreturn]] void end_without_catch() {
  if (is_lack_of_memory(std::current_exception())) {
    // Not by a stream: whoever holds its lock may be what ends here.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMemoryEnded.data(), kMemoryEnded.size());
    std::_Exit(static_cast<int>(ErrorCode::kMemory));
  }
  if (previous_handler != nullptr) previous_handler();
  std::abort();
}

}  // namespace

void advise_where_memory_ends() {
  const std::terminate_handler before = std::set_terminate(end_without_catch);
  if (before != end_without_catch) previous_handler = before;
  std::set_new_handler(note_failed_new);
}

}  // namespace fsdp::train
