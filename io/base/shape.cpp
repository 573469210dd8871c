#include "io/base/shape.h"

#include <algorithm>

namespace fsdp::io {

std::optional<int64_t> checked_numel(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    empty = empty || size == 0;
    if (size < 0 || __builtin_mul_overflow(numel, std::max<int64_t>(size, 1), &numel)) return std::nullopt;
  }
  return empty ? 0 : numel;
}

}  // namespace fsdp::io
