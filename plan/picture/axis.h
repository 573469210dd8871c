#pragma once

namespace fsdp::plan {

// 1, 2 or 5 times a power of ten, so that at most `count` of them are `whole`, which is above 0.
double round_step(double whole, int count);

}  // namespace fsdp::plan
