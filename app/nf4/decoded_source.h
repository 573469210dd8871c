#pragma once

#include <memory>
#include <optional>

#include "io/base/weight_source.h"

namespace fsdp::app {

// The weights that NF4 codes stand for, in F32 if `dtype` is given (to be converted further), else in BF16: of a
// checkpoint of `fsdp train` with tune.base = "nf4", whose base is codes, or of a folder as open_coded_source() and
// bitsandbytes write it; `config` without its quantization_config. Any other source comes back as it is. Throws
// Error(kModel) where what belongs to codes is missing or of another shape, and for what bitsandbytes stores otherwise
// (fp4, 8 bits, scales that are not codes).
std::unique_ptr<io::WeightSource> open_decoded_source(std::unique_ptr<io::WeightSource> source,
                                                      std::optional<io::DType> dtype);

}  // namespace fsdp::app
