#include "io/base/weight_source.h"

#include "io/base/shape.h"

namespace fsdp::io {

int64_t WeightTensor::numel() const { return checked_numel(shape).value_or(0); }

}  // namespace fsdp::io
