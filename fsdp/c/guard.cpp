#include "fsdp/c/guard.h"

#include <c10/util/Exception.h>

#include <exception>
#include <filesystem>
#include <new>
#include <string>

#include "fsdp/base/lack_of_memory.h"

namespace fsdp::c {
namespace {

constexpr size_t kMessageRoom = 4096;

// Of a fixed size: there may be no memory left to tell about.
thread_local char message_of_thread[kMessageRoom] = "";

fsdp_status failed(fsdp_status status, const std::string_view text) {
  message_of_thread[text.copy(message_of_thread, kMessageRoom - 1)] = '\0';
  return status;
}

fsdp_status describe(const std::exception& error) {
  const bool memory = is_lack_of_memory(error);
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error)) {
    return failed(memory ? FSDP_MEMORY : FSDP_INTERNAL, torch->what_without_backtrace());
  }
  return failed(memory ? FSDP_MEMORY : FSDP_INTERNAL, error.what());
}

}  // namespace

fsdp_status guarded(const std::function<void()>& work) noexcept {
  try {
    work();
    return FSDP_OK;
  } catch (const Error& error) {
    return failed(static_cast<fsdp_status>(error.code()), error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    return failed(FSDP_FILE_SYSTEM, error.what());
  } catch (const std::bad_alloc&) {
    return failed(FSDP_MEMORY, "out of memory. Use a smaller microbatch, or more ranks.");
  } catch (const std::exception& error) {
    return describe(error);
  } catch (...) {
    return failed(FSDP_INTERNAL, "unknown exception");
  }
}

const char* last_error() noexcept { return message_of_thread; }

}  // namespace fsdp::c
