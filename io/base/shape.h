#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::io {

// The number of elements, or nothing if a size is negative or the product does not fit.
std::optional<int64_t> checked_numel(const std::vector<int64_t>& shape);

}  // namespace fsdp::io
