// What code of a test uses of the machine, whatever else runs there.
#pragma once

#include <malloc.h>

#include <cstddef>
#include <ctime>

namespace fsdp::usage {

// Of all threads of this process, while `code` runs.
template <class Code>
double processor_seconds(const Code& code) {
  const std::clock_t begin = std::clock();
  code();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

// Of the heap.
inline size_t held_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

}  // namespace fsdp::usage
