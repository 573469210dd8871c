#pragma once

namespace fsdp::train {

// Makes LibTorch and the libraries below it choose operators that give the same bits again, and refuse those that
// cannot. For the whole process; call it before anything computes. The number of threads is part of the result: where a
// sum is cut depends on it.
void compute_deterministically();

}  // namespace fsdp::train
