#pragma once

#include <memory>
#include <optional>

#include "io/base/weight_source.h"
#include "io/weights/adapter.h"

namespace fsdp::io {

// The weights of `base` with an adapter worked in: W + scale B A, computed in fp32 from W as stored, then rounded once:
// to `dtype` where given, else to what `base` stores. Tensors of an adapter in `base` are left out. Throws
// Error(kModel) if the adapter has a module that `base` lacks or whose shape differs, and Error(kUsage) for a dtype
// that nothing can be rounded to.
std::unique_ptr<WeightSource> open_merged_source(std::unique_ptr<WeightSource> base, Adapter adapter,
                                                 std::optional<DType> dtype);

}  // namespace fsdp::io
