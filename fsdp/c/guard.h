#pragma once

#include <functional>

#include "fsdp/base/check.h"
#include "fsdp/c/fsdp_c.h"

namespace fsdp::c {

// Runs what a function of the C interface does; what it throws becomes the status, and fsdp_last_error().
fsdp_status guarded(const std::function<void()>& work) noexcept;

const char* last_error() noexcept;

template <class T>
T& given(T* pointer, const char* function, const char* name) {
  FSDP_CHECK(pointer != nullptr, "[", function, "] ", name, ": got NULL, expected one. Pass it.");
  return *pointer;
}

}  // namespace fsdp::c
