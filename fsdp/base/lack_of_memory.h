#pragma once

#include <exception>

namespace fsdp {

// Whether what failed, in our code or in a library's, failed for lack of memory: std::bad_alloc, an allocator of
// LibTorch, an oneDNN primitive, the system's ENOMEM by its code or in the text, or a thread that could not be started
// (a stack that finds no memory is refused as one thread too many, EAGAIN). Local.
bool is_lack_of_memory(const std::exception& error) noexcept;

}  // namespace fsdp
