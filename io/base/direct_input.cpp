#include "io/base/direct_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "io/base/aligned_buffer.h"

namespace fsdp::io {

DirectInput::DirectInput(const std::filesystem::path& path)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC | O_NONBLOCK)) {}

DirectInput::~DirectInput() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

DirectInput::DirectInput(DirectInput&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

DirectInput& DirectInput::operator=(DirectInput&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

bool DirectInput::read(uint64_t begin, uint64_t num_bytes, char* out) const {
  if (descriptor_ < 0 || reinterpret_cast<uintptr_t>(out) % kDirectAlignment != 0) return false;
  uint64_t done = 0;
  while (done < num_bytes) {
    const uint64_t left = AlignedBuffer::rounded(num_bytes - done);
    const ssize_t got = ::pread(descriptor_, out + done, left, static_cast<off_t>(begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    // What follows a piece that ends anywhere is not aligned, and its end, rounded up, may lie behind `out`'s.
    if (static_cast<uint64_t>(got) < num_bytes - done && got % static_cast<ssize_t>(kDirectAlignment) != 0)
      return false;
    done += static_cast<uint64_t>(got);
  }
  return true;
}

}  // namespace fsdp::io
