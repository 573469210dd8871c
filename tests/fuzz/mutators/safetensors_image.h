#pragma once

#include <string>

#include "tests/fuzz/mutators/engine.h"

namespace fsdp::fuzz {

// A changed safetensors file. Most results have a header length that fits the header, many also offsets that fit the
// shapes: without that hardly any would get past the first checks of a reader.
std::string mutate_safetensors(const std::string& file, size_t max_size, Random& random);

}  // namespace fsdp::fuzz
