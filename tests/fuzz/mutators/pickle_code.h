#pragma once

#include <string>

#include "tests/fuzz/mutators/engine.h"

namespace fsdp::fuzz {

// A changed pickle: whole opcodes are removed, repeated, moved or given other arguments, so that the machine that reads
// it gets further than with changed bytes.
std::string mutate_pickle(const std::string& pickle, size_t max_size, Random& random);

}  // namespace fsdp::fuzz
