#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "io/file_ops.h"

namespace fsdp::io {

// Uninitialised memory for reads and writes past the page cache: aligned to kDirectAlignment, rounded up to a multiple
// of it. Move-only.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(size_t num_bytes)
      : data_(static_cast<char*>(std::aligned_alloc(kDirectAlignment, rounded(num_bytes)))) {
    if (data_ == nullptr) throw std::bad_alloc();
  }

  char* data() const { return data_.get(); }

  static size_t rounded(size_t num_bytes) {
    return num_bytes == 0 ? kDirectAlignment : (num_bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
  }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::unique_ptr<char, Free> data_;
};

}  // namespace fsdp::io
