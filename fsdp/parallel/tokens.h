#pragma once

namespace fsdp::parallel {

// What ranks hold between parallel layers: all tokens, alike; or each a part of them, along the dimension before the
// last, which the number of ranks must divide (sequence parallelism).
enum class Tokens { kAll, kOwn };

}  // namespace fsdp::parallel
