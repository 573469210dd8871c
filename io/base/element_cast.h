#pragma once

#include <cstdint>

#include "io/base/dtype.h"

namespace fsdp::io {

// True for F16, BF16, F32 and F64: the types that --dtype converts. FP8 is not among them: its scales are not known.
bool is_float(DType dtype);

// Converts `count` elements as PyTorch's tensor.to() does: to the nearest, ties to even, by way of F32; a NaN becomes
// 0x7FC0 in BF16 and 0x7E00 in F16, what is too large for F16 infinite. REQUIRES: is_float(from), `to` is BF16, F16 or
// F32. `from_data` and `to_data` do not overlap.
void cast_elements(DType from, const void* from_data, DType to, void* to_data, int64_t count);

}  // namespace fsdp::io
