#pragma once

namespace fsdp {

// Loads libfsdp_cuda.so, which lies beside libfsdp.so, with LibTorch's CUDA libraries: kernels of the operators and
// optimizers, NCCL, profiler ranges. fully_shard() calls it where weights are on a GPU; a program that needs the
// operators alone calls it itself. No-op once it is loaded. Thread-safe.
// Throws Error(kUsage) where the library is not installed or cannot be loaded, with the loader's words.
void load_cuda();

}  // namespace fsdp
