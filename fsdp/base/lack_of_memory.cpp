#include "fsdp/base/lack_of_memory.h"

#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

namespace fsdp {

bool is_lack_of_memory(const std::exception& error) noexcept {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (const auto* system = dynamic_cast<const std::system_error*>(&error)) {
    if (system->code() == std::errc::not_enough_memory) return true;
    if (system->code() == std::errc::resource_unavailable_try_again) return true;
  }
  // Gloo tells of every failed system call by its text alone. oneDNN's errors have a text for what it could not do and
  // none for why; what LibTorch asks of it can be done where it finds memory for its objects and the code that it
  // makes. The last two are LibTorch's own.
  for (const char* text :
       {static_cast<const char*>(std::strerror(ENOMEM)), "could not create a primitive", "could not create an engine",
        "could not create a stream", "could not create a memory object", "can't allocate memory", "out of memory"}) {
    if (std::strstr(error.what(), text) != nullptr) return true;
  }
  return false;
}

}  // namespace fsdp
